"""Pruning, removal of channels, and the phases behind the training itself."""
