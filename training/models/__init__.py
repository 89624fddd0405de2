"""Network families: plain PyTorch, one a file, each with a recipe in `training/recipes`."""
