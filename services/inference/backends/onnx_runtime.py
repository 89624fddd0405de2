"""ONNX models through ONNX Runtime, on the CPU.

Rule kept here: an input's memory is new for every batch, so that no output can share it with
a later one.
"""

from collections.abc import Mapping

import numpy as np
import onnxruntime

from model_store.signature import Signature
from model_store.tensors import Array
from services.inference.backends.backend import Backend

_FATAL_ONLY = 4
"""Errors are raised, and logged by whoever catches them: a second line past our logs says less."""


class OnnxRuntimeBackend(Backend):
    """One session. The file is data: no custom operators are registered.

    Of the public ways to run a session this is the cheapest: with run options kept between runs
    `run` costs 10 µs for a tiny model, 12 without, 20 with an I/O binding made for each batch and
    75 through `OrtValue`s. None of them copies an input.
    """

    platform = "onnx_onnxv1"

    def __init__(self, data: bytes, signature: Signature, threads: int) -> None:
        self._session = onnxruntime.InferenceSession(
            data, session_options(threads), providers=["CPUExecutionProvider"]
        )
        self._run_options = onnxruntime.RunOptions()
        self._outputs = [spec.name for spec in signature.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`."""
        values = self._session.run(self._outputs, dict(inputs), self._run_options)
        return {n: np.asarray(v) for n, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Frees the session."""
        del self._session

    def kill(self) -> None:
        """Makes the present run, and every later one, raise at its next operator."""
        self._run_options.terminate = True


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Options of every session here.

    Args:
        threads: how many of its own threads the session runs an operator on.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    # A plan of a run's memory asks for it in one block, anew for every batch size: larger batches
    # than there were at first nearly doubled what a transformer holds, for no speed.
    options.enable_mem_pattern = False
    # Idle threads that spin would take the cores from the gateway.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
