"""Contracts of our own."""
