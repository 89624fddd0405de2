"""Certificates: an artifact is verified again on the machine that serves it."""
