"""Training loops that are compared."""
