"""From a recipe to a published version: train, export, verify, publish.

A run goes through these files in this order: `recipe_file` reads the recipe, `datasets` makes the
splits, `loop` trains and `checkpoint` remembers, `exporters` writes the artifacts, `verify` replays
them against the checkpoint, `report` shows the figures, `publish` hands what is proven to the model
store. `pipeline.run` is that sentence as code.
"""
