"""Backends that run artifacts on a GPU, and what they share."""
