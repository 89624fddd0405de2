"""Edges: decode and encode the Open Inference Protocol and our extensions over REST and gRPC."""
