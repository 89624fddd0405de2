"""Tensors and signatures of the Open Inference Protocol, for the client, the store and servers."""
