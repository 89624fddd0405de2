"""Runs a backend in a process of its own, so that a model that crashes it crashes alone."""
