"""OpenVINO models (IR: an `.xml` of the graph and a `.bin` of the weights), on the CPU.

Rules kept here:
- both files come from memory: nothing beside them is opened, and no extension is registered, so
  the files are data;
- a run is `infer`, which computes in the thread that asks for it: an asynchronous one could be
  cancelled, but takes longer, and runs in a thread whose priority is that of who opened it;
- inputs are read where they lie, outputs are copied: OpenVINO writes the next ones into the same
  memory.

Source: https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino

from model_store.manifest import Precision
from model_store.signature import Signature
from model_store.tensors import Array
from services.errors import BackendError
from services.inference.backends.backend import Backend

_PRECISION_HINTS = {"fp32": "f32", "int8": "f32", "bf16": "bf16", "fp16": "f16"}
"""What is not 8 bit in the model is computed in this; a processor without it takes more bits."""


class OpenVinoBackend(Backend):
    """One compiled model.

    Args:
        data: the `.xml`.
        weights: the `.bin`.
        signature: names of inputs and outputs, which the model's tensors bear.
        threads: CPU threads of a run.
        precision: of the artifact.

    Raises:
        BackendError: a name of the signature is not one of the model's.
    """

    platform = "openvino_ir"

    def __init__(
        self, data: bytes, weights: bytes, signature: Signature, threads: int, precision: Precision
    ) -> None:
        core = openvino.Core()
        model = core.read_model(model=data, weights=weights)
        compiled = core.compile_model(model, "CPU", _properties(threads, precision))
        self._inputs = [_port(compiled, "input", spec.name) for spec in signature.inputs]
        self._names = [spec.name for spec in signature.inputs]
        self._outputs = {
            spec.name: _port(compiled, "output", spec.name) for spec in signature.outputs
        }
        self._request = compiled.create_infer_request()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        arrays = [np.ascontiguousarray(inputs[name]) for name in self._names]
        for port, array in zip(self._inputs, arrays, strict=True):
            # What is read-only, as request bytes are, it takes a copy of only.
            shared = bool(array.flags.writeable)
            self._request.set_tensor(port, openvino.Tensor(array, shared_memory=shared))
        self._request.infer()
        return {n: self._request.get_tensor(p).data.copy() for n, p in self._outputs.items()}

    def close(self) -> None:
        """Frees the model."""
        del self._request, self._inputs, self._outputs


def _properties(threads: int, precision: Precision) -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": _PRECISION_HINTS[precision],
        # Instances and models share the cores: none may sit on one of its own.
        "ENABLE_CPU_PINNING": False,
    }


def _port(compiled: Any, side: str, name: str) -> Any:
    """The input or output of a name."""
    for port in compiled.inputs if side == "input" else compiled.outputs:
        if name in port.get_names():
            return port
    ports = compiled.inputs if side == "input" else compiled.outputs
    found = ", ".join(sorted(n for port in ports for n in port.get_names())) or "none"
    raise BackendError(
        f"the OpenVINO model has no {side} '{name}', as the signature says; it names: {found}; "
        "export it again with the signature's names"
    )
