"""Runs handlers of TorchServe's archives, in the process of their model."""
