"""The registry: versions of models, their aliases and their files, for callers who may see them."""
