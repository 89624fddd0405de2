"""Pipelines: versions that are graphs of steps, each of which is a version of another model."""
