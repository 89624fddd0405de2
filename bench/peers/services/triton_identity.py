"""An empty model of Triton's python backend: every request gets its input back."""

from typing import Any

import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    """Model class that the python backend calls."""

    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [triton.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [triton.InferenceResponse([triton.Tensor("y", rows)]) for rows in inputs]
