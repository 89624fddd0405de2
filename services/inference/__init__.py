"""Batches run on a device: the batcher, the worker, backends, and what loads and unloads them."""
