"""Shared memory of clients on the same host, through which tensors come and go."""
