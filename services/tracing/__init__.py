"""Traces of requests: from the edge, through the queue, to the backend."""
