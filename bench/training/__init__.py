"""Training loops under comparison."""
