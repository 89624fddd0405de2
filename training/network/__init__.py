"""The network of a recipe: made, initialised, tried, and what is computed before it."""
