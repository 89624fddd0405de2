"""From a recipe to a published version: train, export, verify, publish.

A run goes through these files in this order: `recipe_file` reads the recipe, `preparation` makes
its splits (`datasets`, `sources/`), `learning/loop` trains on batches of `rows/` and
`learning/checkpoint` remembers, `exporters/` writes the artifacts, `proof/verify` replays them
against the checkpoint, `reporting/report` shows the figures, `publish` hands what is proven to the
model store, and `promotion` moves an alias. `pipeline.run` is that sentence as code.
"""
