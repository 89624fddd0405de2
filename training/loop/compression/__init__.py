"""Pruning, removal of channels, and the phases after the training."""
