"""Sources of rows: one file for each source that a recipe's `data` may name."""
