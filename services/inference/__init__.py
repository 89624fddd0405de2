"""Runs batches on a device: the batcher, the worker, backends, and their loading and unloading."""
