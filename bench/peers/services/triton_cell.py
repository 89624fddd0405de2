"""Recurrent cell of Triton's python backend, behind its sequence batcher: it keeps the states."""

from typing import Any

import numpy as np
import torch

WIDTH, HIDDEN, SEED = 16, 256, 5


class TritonPythonModel:
    """Model class that the python backend calls."""

    def initialize(self, arguments: dict[str, str]) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.cell, self.out = torch.nn.GRUCell(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, 4)
        self.states: dict[int, torch.Tensor] = {}

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as triton  # type: ignore[import-not-found]

        def given(name: str) -> list[Any]:
            return [triton.get_input_tensor_by_name(r, name).as_numpy() for r in requests]

        names = [int(one.flat[0]) for one in given("CORRID")]
        for name, is_first in zip(names, given("START"), strict=True):
            if is_first.flat[0]:
                self.states[name] = torch.zeros(HIDDEN)
        x = torch.from_numpy(np.concatenate(given("x")))
        with torch.inference_mode():
            after = self.cell(x, torch.stack([self.states[name] for name in names]))
            output = self.out(after).numpy()
        for name, state, is_last in zip(names, after, given("END"), strict=True):
            self.states[name] = state
            if is_last.flat[0]:
                del self.states[name]
        rows = np.split(output, len(names))
        return [triton.InferenceResponse([triton.Tensor("y", row)]) for row in rows]
