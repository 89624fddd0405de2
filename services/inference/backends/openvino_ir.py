"""OpenVINO models (IR: an `.xml` of the graph and a `.bin` of the weights), on the CPU.

Rules:
- both files are read from memory: no other file is opened, and no extension is registered, so the
  files are data;
- a run is `infer`, which computes in the calling thread: an asynchronous run could be cancelled,
  but takes longer, and its thread has the priority of the thread that opened the model;
- inputs are not copied, outputs are: OpenVINO writes the next outputs into the same memory.

Source: https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino

from flambeau.protocol.tensors import Array
from model_store.manifest import Precision
from services.errors import BackendError
from services.inference.backends.backend import Backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact

_PRECISION_HINTS = {"fp32": "f32", "int8": "f32", "bf16": "bf16", "fp16": "f16"}
"""Type for all operators that are not int8; a processor without it computes with more bits."""


class OpenVinoBackend(Backend):
    """One compiled model.

    Args:
        artifact: the `.xml` and `.bin` files; the model's tensors have the signature's names.
        options: CPU threads of a run.

    Raises:
        BackendError: the model has no tensor of a name in the signature.
    """

    platform = "openvino_ir"
    owns_outputs = True

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        core, signature = openvino.Core(), artifact.signature
        model = core.read_model(model=artifact.data, weights=artifact.weights)
        properties = _properties(options.threads, artifact.entry.precision)
        compiled = core.compile_model(model, "CPU", properties)
        self._inputs = [_port(compiled, "input", spec.name) for spec in signature.inputs]
        self._names = [spec.name for spec in signature.inputs]
        self._outputs = {
            spec.name: _port(compiled, "output", spec.name) for spec in signature.outputs
        }
        self._request = compiled.create_infer_request()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        arrays = [np.asarray(inputs[name], order="C") for name in self._names]
        for port, array in zip(self._inputs, arrays, strict=True):
            # OpenVINO shares writable memory only, and copies read-only arrays, as of requests.
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
        # Instances and models share the cores: none may be pinned to a core.
        "ENABLE_CPU_PINNING": False,
    }


def _port(compiled: Any, side: str, name: str) -> Any:
    """Returns the input or output of a name."""
    for port in compiled.inputs if side == "input" else compiled.outputs:
        if name in port.get_names():
            return port
    ports = compiled.inputs if side == "input" else compiled.outputs
    found = ", ".join(sorted(n for port in ports for n in port.get_names())) or "none"
    raise BackendError(
        f"the OpenVINO model has no {side} '{name}', as the signature says; it names: {found}; "
        "export it again with the signature's names"
    )
