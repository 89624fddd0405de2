"""Moves of aliases that need two persons: requests, and decisions about them."""
