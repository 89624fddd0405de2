"""Publishes models from Python: captures them in the caller's process, and has ours do the rest.

Modules of this package import none of our other packages by name: a caller's project may have its
own `training`, `services`, `protos` or `model_store`.
"""
