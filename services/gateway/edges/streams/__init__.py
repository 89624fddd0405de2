"""Inferences with any number of answers: gRPC's ModelStreamInfer, and REST's generate."""
