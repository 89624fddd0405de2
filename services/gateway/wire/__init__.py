"""Bytes in, bytes out: HTTP/1, HTTP/2 and gRPC as they are on the wire. Knows nothing of models."""
