"""Where rows come from: a file for each source that a recipe's `data` may name."""
