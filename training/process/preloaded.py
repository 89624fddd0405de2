"""Modules that nearly every isolated call needs, and that start no thread that a fork could break.

The server of processes imports this one. An installation may lack some of them.
"""

import contextlib
import importlib
import tempfile

from flambeau.protocol.heavy_imports import heavy_imports

with heavy_imports():
    for name in ("torch", "torch._dynamo", "onnx", "onnxscript", "training.network.model"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
tempfile.gettempdir()  # it writes a file to try the folder, which a killed call would leave there
