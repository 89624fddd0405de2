"""Versions that arrive in pieces: declared, appended to, checked, and then published at once."""
