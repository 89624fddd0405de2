"""Names of what a caller's process writes for ours: the request, the examples and side files."""

REQUEST, EXAMPLES = "request.json", "examples.safetensors"
FILES = "files"
"""Folder of the side files of a Python model."""
