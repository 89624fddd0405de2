"""Network families: plain torch, one a file, each with a recipe in `training/recipes`."""
