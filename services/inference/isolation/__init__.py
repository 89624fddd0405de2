"""Runs a backend in a worker process, so that a model that crashes does not crash the server."""
