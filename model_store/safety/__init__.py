"""Checks of files before a runtime opens them."""
