"""What a backend is: a loaded artifact that runs batches."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from model_store.tensors import Array


class Backend(Protocol):
    """A loaded artifact. One worker thread uses it at a time.

    What is given here suits a backend on the CPU, in this process; the others say otherwise.
    """

    platform: str
    """The protocol's platform string, `<project>_<format>`."""

    def buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Memory for one input of the next run, for the caller to fill.

        Args:
            name: of the input.
            shape: [rows, ...].
            dtype: of its elements.

        Returns:
            An array with undefined contents, valid until that run ends.
        """
        return np.empty(shape, dtype)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch.

        Args:
            inputs: every input of the signature, [rows, ...]; what `buffer` gave, or any other
                arrays, read-only ones too.

        Returns:
            Every output of the signature, [rows, ...]. They belong to the caller: a later run
            does not overwrite them.

        Raises:
            DeviceError: the device and not an input is at fault: it is in error, it is out of
                memory, or the process that runs the model died.
            Exception: whatever else the model raises.
        """

    def close(self) -> None:
        """Frees the model's memory."""

    def kill(self) -> None:
        """Ends a run that blocks, where that can be done; called from another thread."""
        return

    def process_bytes(self) -> int:
        """Memory of the process it has to itself; 0 for one that runs in ours."""
        return 0
