"""Figures, verdicts and charts."""
