"""Metrics of outputs, and their confidence intervals."""
