"""The network for the peers' services: one torch thread, numpy in, numpy out.

Copied beside `weights.safetensors`, `model.json` and `networks.py` into the folder of a model;
needs torch and safetensors, and no code of ours.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file


class PeerNetwork:
    """A network with its weights, ready to run batches.

    Args:
        folder: folder written by `ServedModel.write_to`.
    """

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        description = json.loads((folder / "model.json").read_text())
        self.input: str = description["input"]
        self.output: str = description["output"]
        self.dtype = np.dtype(description["dtype"])
        self.row_shape = tuple(description["row_shape"])
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.row_shape))
        sys.path.insert(0, str(folder))
        self._network = getattr(importlib.import_module("networks"), description["network"])()
        self._network.load_state_dict(load_file(folder / "weights.safetensors"))
        self._network.eval()

    def run(self, batch: NDArray[Any]) -> NDArray[np.float32]:
        """Maps [rows, *row_shape] to [rows, classes]."""
        with torch.inference_mode():
            answer: NDArray[np.float32] = self._network(torch.from_numpy(batch)).numpy()
        return answer

    def row_from_list(self, numbers: list[Any]) -> NDArray[Any]:
        """Converts parsed JSON, nested or flat, to one row."""
        return np.asarray(numbers, self.dtype).reshape(self.row_shape)

    def row_from_bytes(self, data: bytes) -> NDArray[Any]:
        """Converts little-endian, row-major bytes to one row."""
        return np.frombuffer(data, self.dtype).reshape(self.row_shape)
