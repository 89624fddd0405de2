"""ONNX models through ONNX Runtime, on the CPU."""

from collections.abc import Mapping

import numpy as np
import onnxruntime

from model_store.signature import Signature
from model_store.tensors import Array

_ERRORS_ONLY = 3


class OnnxRuntimeBackend:
    """One session. The file is data: no custom operators are registered."""

    platform = "onnx_onnxv1"

    def __init__(self, data: bytes, signature: Signature, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        # Idle threads that spin would take the cores from the gateway.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"]
        )
        self._outputs = [spec.name for spec in signature.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        values = self._session.run(self._outputs, dict(inputs))
        return {n: np.asarray(v) for n, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Frees the session."""
        del self._session
