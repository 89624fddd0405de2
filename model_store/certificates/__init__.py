"""Certificates: records of verifications, beside the versions."""
