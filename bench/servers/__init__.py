"""Servers that are measured, and what they use."""
