"""Copies of the files and documents of a bucket on the disk of a machine that serves them."""
