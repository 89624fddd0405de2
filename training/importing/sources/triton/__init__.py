"""Reads model repositories of Triton Inference Server."""
