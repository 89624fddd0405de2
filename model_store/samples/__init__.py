"""Payload samples and their storage."""
