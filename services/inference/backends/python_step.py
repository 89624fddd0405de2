"""Runs a version's Python step before any backend: raw inputs in, the artifact's outputs out."""

from collections.abc import Mapping

from flambeau.protocol.tensors import Array
from model_store.host.failure_text import error_text
from model_store.python_step import PythonStepError, check_result, open_step
from services.errors import BackendError, InputRefusedError
from services.inference.backends.backend import Backend
from services.inference.backends.verified_artifact import StepCode


class PythonStepBackend(Backend):
    """Runs the step on each batch, in the backend's thread, and the backend on the step's result.

    Args:
        code: the step.
        behind: an open backend, which this one owns.

    Raises:
        BackendError: the step cannot be created; the backend is closed.
    """

    def __init__(self, code: StepCode, behind: Backend) -> None:
        self._specs, self._behind = code.step.inputs, behind
        self.platform = behind.platform
        try:
            self._step = open_step(code.source, code.step.name, code.step.args)
        except PythonStepError as error:
            behind.close()
            raise BackendError(f"the python step cannot be made: {error}") from error

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch; see `Backend.run`.

        Raises:
            InputRefusedError: the step raised a ValueError: it rejects these rows.
            BackendError: its result does not have the form that it had in training.
        """
        try:
            prepared = check_result(self._step(inputs), self._specs)
        except ValueError as error:
            raise InputRefusedError(error_text(error)) from error
        except PythonStepError as error:
            raise BackendError(str(error)) from error
        return self._behind.run(prepared)

    def close(self) -> None:
        """Closes the backend."""
        self._behind.close()

    def kill(self) -> None:
        """Kills the backend's run; a step that blocks cannot be aborted from outside."""
        self._behind.kill()

    def process_bytes(self) -> int:
        """Returns the backend's `process_bytes`."""
        return self._behind.process_bytes()
