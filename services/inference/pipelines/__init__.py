"""Pipelines: requests that run through several models of this process."""
