"""Arrays in files, padded rows, and comparisons of arrays."""
