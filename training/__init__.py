"""From a recipe to a published version: train, export, verify, publish.

A run passes these files in this order: `recipe/file` reads the recipe, `preparation` loads its
splits (`datasets`, `sources/`), `loop/loop` trains on batches of `loading/`, `loop/checkpoint`
saves checkpoints, `exporters/` writes the artifacts, `verification/verify` compares them with the
checkpoint, `reporting/report` prints the figures, `publish` publishes the verified artifacts to the
model store, and `promotion` moves an alias. `pipeline.run` executes these steps.
"""
