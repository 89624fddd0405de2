"""Servers under measurement, and their helpers."""
