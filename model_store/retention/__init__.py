"""Retention: which versions are kept, and the deletion of all others."""
