"""Python models: a user's class as a backend, in this process or in one of its own."""

import sys
from collections.abc import Generator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from flambeau.protocol.python_model import Network
from flambeau.protocol.tensors import Array
from model_store.host.failure_text import error_text
from model_store.python_models.network_file import read_network
from model_store.python_models.open_model import OpenModel, PythonModelError
from services.errors import BackendError, InputRefusedError
from services.inference.backends.backend import Backend
from services.inference.backends.device import Device
from services.inference.backends.onnx_providers import session_providers
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.queueing.records import PYTHON_PLATFORM


class PythonModelBackend(Backend):
    """One instance of the class.

    Raises:
        BackendError: the class cannot be created or loaded.
    """

    platform = PYTHON_PLATFORM

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        described = artifact.entry.python
        assert described is not None
        assert artifact.folder is not None
        self._folder, folder = artifact.folder, artifact.folder.path
        self._path = str(folder)
        if any(entry.file.endswith(".py") for entry in described.files):
            sys.path.append(self._path)  # behind all else: no side file hides a package
        try:
            self._model = OpenModel(
                artifact.data,
                folder / artifact.entry.file.file,
                described,
                artifact.signature.outputs,
                device=str(options.device),
                open_network=partial(open_network, threads=options.threads, device=options.device),
            )
        except PythonModelError as error:
            raise BackendError(str(error)) from error
        self.gives_parts = self._model.gives_parts

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`.

        Raises:
            InputRefusedError: the model raised a ValueError: it refuses these rows.
            BackendError: it raised another exception, or its answer is not the signature's.
            MemoryError: memory is exhausted.
        """
        try:
            return self._model.run(inputs)
        except (PythonModelError, ValueError) as error:
            raise _served(error) from error

    def run_in_parts(self, inputs: Mapping[str, Array]) -> Generator[dict[str, Array], None, None]:
        """Yields each answer to a batch; raises as `run`."""
        with closing(self._model.run_in_parts(inputs)) as parts:
            try:
                yield from parts
            except (PythonModelError, ValueError) as error:
                raise _served(error) from error

    def close(self) -> None:
        """Closes the model, and removes its folder."""
        self._model.close()
        self._folder.remove()
        if self._path in sys.path:
            sys.path.remove(self._path)


def _served(error: PythonModelError | ValueError) -> BackendError:
    """Returns a model's error as that of a backend."""
    if isinstance(error, PythonModelError):
        return BackendError(str(error))
    return InputRefusedError(error_text(error))


def open_network(path: Path, *, threads: int, device: Device) -> Network:
    """Opens an ONNX file; see `Context.network`.

    Args:
        path: the file, whose digest was verified.
        threads: CPU threads that a run may use.
        device: device that runs it.

    Raises:
        StoreError: it refers to more than its own bytes.
    """
    import onnxruntime

    from services.inference.backends.onnx_runtime import session_options

    data = read_network(path)
    providers = [] if device.kind == "cpu" else session_providers(device.index, None)
    session = onnxruntime.InferenceSession(
        data, session_options(threads), providers=[*providers, "CPUExecutionProvider"]
    )
    run_options = onnxruntime.RunOptions()
    names = [output.name for output in session.get_outputs()]

    def run(given: Mapping[str, Array] | None = None, /, **inputs: Array) -> dict[str, Array]:
        values = session.run(names, {**(given or {}), **inputs}, run_options)
        return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}

    return run
