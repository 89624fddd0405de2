"""Figures of the front door beside plain inference: streams."""
