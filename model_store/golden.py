"""The golden rows: inputs and the checkpoint's own outputs, and how their file names them.

Pure. The file is safetensors and holds tensors `input.NAME` and `output.NAME`, each [rows, ...].
Safetensors has no strings: an input of BYTES is `bytes.NAME`, its elements each behind its length
(as `model_store.tensors` has them) in one row of UINT8, and `shape.NAME`, its shape in INT64.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model_store.tensors import (
    Array,
    datatype_of,
    decode_bytes_elements,
    element_count,
    encode_bytes_elements,
)

_INPUT, _OUTPUT = "input.", "output."
_BYTES, _SHAPE = "bytes.", "shape."


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
        tensors: dict[str, Array] = {}
        for name, array in self.inputs.items():
            if datatype_of(array) == "BYTES":
                tensors[_BYTES + name] = np.frombuffer(encode_bytes_elements(array), np.uint8)
                tensors[_SHAPE + name] = np.array(array.shape, np.int64)
            else:
                tensors[_INPUT + name] = array
        return tensors | {_OUTPUT + name: array for name, array in self.outputs.items()}


def golden_rows(tensors: Mapping[str, Array]) -> GoldenRows:
    """The rows out of what a golden file holds.

    Raises:
        TensorError: the elements of a BYTES input are not as many as its shape says.
    """
    inputs, outputs = (
        {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}
        for prefix in (_INPUT, _OUTPUT)
    )
    for key, octets in tensors.items():
        if key.startswith(_BYTES):
            name = key.removeprefix(_BYTES)
            shape = [int(size) for size in np.asarray(tensors[_SHAPE + name])]
            elements = decode_bytes_elements(octets.tobytes(), element_count(shape))
            inputs[name] = elements.reshape(shape)
    return GoldenRows(inputs, outputs)
