"""Wire protocols: HTTP/1, HTTP/2 and gRPC as bytes. Independent of models."""
