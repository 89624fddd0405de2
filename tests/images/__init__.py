"""Proof of the images without a container engine: `make images-check`."""
