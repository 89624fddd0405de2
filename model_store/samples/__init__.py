"""Payload samples, and where they are kept."""
