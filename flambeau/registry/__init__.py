"""The client of a registry: pushes versions to it, and pulls them from it."""
