"""Figures at the limits: open connections, the slowest answers, large tensors."""
