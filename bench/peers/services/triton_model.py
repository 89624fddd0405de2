"""Model of Triton's python backend: joins the requests of the dynamic batcher, runs, splits."""

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    """Model class that the python backend calls."""

    def initialize(self, arguments: dict[str, str]) -> None:
        import sys

        folder = Path(arguments["model_repository"]) / arguments["model_version"]
        sys.path.insert(0, str(folder))
        from peer_network import PeerNetwork  # type: ignore[import-not-found]

        self.network = PeerNetwork(folder)

    def execute(self, requests: list[Any]) -> list[Any]:
        name = self.network.input
        inputs = [triton.get_input_tensor_by_name(r, name).as_numpy() for r in requests]
        answer = self.network.run(np.concatenate(inputs))
        parts = np.split(answer, np.cumsum([len(rows) for rows in inputs])[:-1])
        return [triton.InferenceResponse([triton.Tensor(self.network.output, p)]) for p in parts]
