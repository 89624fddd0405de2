"""Requests to batches, and batches to instances of a model."""
