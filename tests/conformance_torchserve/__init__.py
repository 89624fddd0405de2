"""Conformance with TorchServe: the real one and ours, with the same archives and the same calls."""
