"""Decoupled model of Triton's python backend: as many parts as the first number of its input."""

from typing import Any

import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    """Model class that the python backend calls."""

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            x = triton.get_input_tensor_by_name(request, "x").as_numpy()
            sender = request.get_response_sender()
            for _ in range(int(x[0, 0])):
                sender.send(triton.InferenceResponse([triton.Tensor("y", x)]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
