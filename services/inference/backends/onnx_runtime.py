"""ONNX models through ONNX Runtime, on the CPU.

Rule: every batch allocates new memory for its inputs, so that no output shares memory with a
later batch.
"""

from collections.abc import Mapping

import numpy as np
import onnxruntime

from flambeau.protocol.tensors import Array, as_bytes
from model_store.safety.onnx_safety import is_steady
from services.errors import InputRefusedError
from services.inference.backends.backend import Backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact

MAX_TEXTS = 65_536
"""Texts of an input: ONNX Runtime converts them in one go, while no other thread runs Python, at
0.3 to 0.6 µs each (`make adversarial`)."""
MAX_SHOWN = 40
"""Bytes of an input in a message."""
_FATAL_ONLY = 4
"""Errors are raised, and logged where they are caught: the runtime's own log line adds nothing."""


class OnnxRuntimeBackend(Backend):
    """One session. The file is data: no custom operators are registered.

    This is the cheapest public way to run a session: `run` costs 10 µs for a tiny model with run
    options that are reused, 12 without, 20 with an I/O binding per batch, and 75 with `OrtValue`s.
    None of them copies an input.
    """

    platform = "onnx_onnxv1"

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        self._session = onnxruntime.InferenceSession(
            artifact.data, session_options(options.threads), providers=["CPUExecutionProvider"]
        )
        self._run_options = onnxruntime.RunOptions()
        self._outputs = [spec.name for spec in artifact.signature.outputs]
        self.fits_loop = options.runs_in_the_calling_thread and is_steady(artifact.data)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        values = self._session.run(self._outputs, dict(inputs), self._run_options)
        return {n: np.asarray(v) for n, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Frees the session."""
        del self._session

    def kill(self) -> None:
        """Makes the current run, and every later one, raise at its next operator."""
        self._run_options.terminate = True


class OnnxTextBackend(OnnxRuntimeBackend):
    """One session with BYTES inputs, which ONNX Runtime takes as text in UTF-8."""

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        super().__init__(artifact, options)
        self.fits_loop = False
        self._texts = [s.name for s in artifact.signature.inputs if s.datatype == "BYTES"]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`.

        Raises:
            InputRefusedError: an element is not UTF-8.
        """
        texts = {name: _texts(name, inputs[name]) for name in self._texts if name in inputs}
        return super().run({**inputs, **texts})


def open_session(artifact: VerifiedArtifact, options: OpenOptions) -> OnnxRuntimeBackend:
    """Opens an ONNX artifact on the CPU."""
    takes_texts = any(spec.datatype == "BYTES" for spec in artifact.signature.inputs)
    return (OnnxTextBackend if takes_texts else OnnxRuntimeBackend)(artifact, options)


def _texts(name: str, array: Array) -> Array:
    if array.size > MAX_TEXTS:
        raise InputRefusedError(
            f"input '{name}' holds {array.size:,} texts, and an ONNX model takes up to "
            f"{MAX_TEXTS:,} at once; send fewer in a request"
        )
    texts = np.empty(array.size, np.object_)
    try:
        texts[:] = [as_bytes(element).decode() for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InputRefusedError(
            f"input '{name}' holds bytes that are not UTF-8 ({error.reason}: "
            f"{error.object[:MAX_SHOWN]!r}), and an ONNX model takes text; encode it as UTF-8"
        ) from error
    return texts.reshape(array.shape)


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Returns the options of every session in this package.

    Args:
        threads: number of the session's own threads that run an operator.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    # A memory pattern allocates one block per batch size: batches larger than the first nearly
    # doubled the memory of a transformer, and were no faster.
    options.enable_mem_pattern = False
    # Idle threads that spin would take CPU time from the gateway.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
