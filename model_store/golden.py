"""The golden rows: inputs and the checkpoint's own outputs, and how their file names them.

Pure. The file is safetensors and holds tensors `input.NAME` and `output.NAME`, each [rows, ...].
"""

from collections.abc import Mapping
from dataclasses import dataclass

from model_store.tensors import Array

_INPUT, _OUTPUT = "input.", "output."


@dataclass(frozen=True, slots=True)
class GoldenRows:
    """Row i of every input gave row i of every output."""

    inputs: Mapping[str, Array]
    """By name, each [rows, ...]."""
    outputs: Mapping[str, Array]
    """By name, each [rows, ...]."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.inputs.values())))

    def to_tensors(self) -> dict[str, Array]:
        """What the golden file holds."""
        tensors = {_INPUT + name: array for name, array in self.inputs.items()}
        return tensors | {_OUTPUT + name: array for name, array in self.outputs.items()}


def golden_rows(tensors: Mapping[str, Array]) -> GoldenRows:
    """The rows out of what a golden file holds."""
    inputs, outputs = (
        {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}
        for prefix in (_INPUT, _OUTPUT)
    )
    return GoldenRows(inputs, outputs)
