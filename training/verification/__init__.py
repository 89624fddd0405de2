"""Verifies that an artifact matches the trained model, and measures it."""
