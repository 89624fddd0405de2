"""Answers requests by one version of a model, in a TorchServe archive.

This package is copied into archives, and runs where nothing of flambeau is installed: it imports
NumPy, and onnxruntime or torch where the version's network needs it. Python 3.10 and later run it.
"""
