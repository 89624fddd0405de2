"""Shared memory over both protocols: its calls, and tensors of gRPC requests in regions."""
