"""The interface of a backend: a loaded artifact that runs batches."""

from collections.abc import Generator, Mapping
from typing import Protocol

import numpy as np

from flambeau.protocol.tensors import Array


class AwaitedRuns(Protocol):
    """Runs that a process of their own makes: the caller begins one, and need not wait in a thread.

    No method waits for the process but `finish`.
    """

    def fileno(self) -> int:
        """Returns a descriptor: readable when a run is over, or the process has ended."""

    def place(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Allocates memory for one input of the next run; see `Backend.buffer`.

        Raises:
            OSError: there is none, or the process has ended.
        """

    def begin(self, inputs: Mapping[str, Array]) -> None:
        """Begins a run; see `Backend.run`.

        Raises:
            OSError: it has not begun, since the process does not take it now, or has ended.
        """

    def outputs_at_hand(self) -> dict[str, Array] | None:
        """Returns the outputs of the run, once the descriptor is readable.

        None if they are large, or something else has come: `finish` deals with that.
        """

    def finish(self) -> dict[str, Array]:
        """Waits for the run that was begun, and returns its outputs; see `Backend.run`."""


class Backend(Protocol):
    """A loaded artifact. One worker thread uses it at a time.

    The default methods suit a backend on the CPU in this process; other backends override them.
    """

    platform: str
    """Platform string of the protocol, `<project>_<format>`."""
    gives_parts: bool = False
    """True if each request gets any number of answers, from `run_in_parts`."""
    owns_outputs: bool = False
    """True if outputs have memory of their own: no runtime reuses it, and no model keeps them."""
    fits_loop: bool = False
    """True if the calling thread does all the work of `run`, in a time that depends on the shapes
    of the inputs and not on their values; the event loop may run it if that time is short."""

    is_twin: bool = False
    """True if it shares the weights of another: beside that it runs only full batches."""

    def buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Allocates memory for one input of the next run, which the caller fills.

        Args:
            name: name of the input.
            shape: [rows, ...].
            dtype: type of its elements.

        Returns:
            An array with undefined contents, valid until that run ends.
        """
        return np.empty(shape, dtype)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch.

        Args:
            inputs: every input of the signature, [rows, ...]; arrays of `buffer`, or any other
                arrays, including read-only ones.

        Returns:
            Every output of the signature, [rows, ...]. They belong to the caller: a later run
            does not overwrite them.

        Raises:
            DeviceError: the cause is the device and not an input: it is in error or out of memory,
                or the process that runs the model died.
            Exception: any other exception of the model.
        """

    def run_in_parts(self, inputs: Mapping[str, Array]) -> Generator[dict[str, Array], None, None]:
        """Runs one batch and yields any number of answers to each of its requests.

        Requests run by it in place of `run` if `gives_parts`; each answer is as `run` returns it.
        The replay of golden rows, warm-up and verification still call `run`, which returns the
        answer that the version was published with.
        """
        yield self.run(inputs)

    def twin(self) -> "Backend | None":
        """Returns another backend with the same weights in the same memory, to run beside this one.

        So one batch is made ready while the device runs another. None if weights cannot be shared,
        or batches would not overlap. Each of the two is closed by itself.
        """
        return None

    def close(self) -> None:
        """Frees the model's memory."""

    def awaited(self) -> AwaitedRuns | None:
        """Returns its runs that no thread need wait for; None if `run` alone makes them."""
        return None

    def kill(self) -> None:
        """Aborts a run that blocks, if the runtime supports that; called from another thread."""
        return

    def process_bytes(self) -> int:
        """Returns the memory of its worker process in bytes; 0 if it runs in this process."""
        return 0
