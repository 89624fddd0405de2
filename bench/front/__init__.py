"""Figures of the front door: streams, sequences, large tensors, models that come and go."""
