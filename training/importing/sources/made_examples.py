"""Example inputs that are made up from shapes and datatypes, and the words that ask for real ones.

Floating point inputs are normally distributed. Integers are small, because they may be rows of an
embedding; those of a mask are ones; bytes (UINT8) have their whole range, as pixels do. Text cannot
be made up.
"""

import math
from collections.abc import Sequence

import numpy as np

from flambeau.protocol.tensors import DATATYPES, Array
from training.errors import SourceError
from training.importing.sources.read_tensor import UNNAMED, ReadTensor, batch_axes
from training.importing.sources.varying_sizes import chosen_sizes

ROWS = 8
SIZE = 8
"""Size of a dimension that varies without limits."""
MAX_BYTES = 2**28
"""Limit on one made-up input; rows are left out beyond it."""
SMALL_RANGES = (10, 2)
"""Integers are below the first number; if the model refuses them, below the second."""
SEED = 7


def made_examples(
    where: str, inputs: Sequence[ReadTensor], *, most_rows: int, integers_below: int
) -> dict[str, Array]:
    """Returns seeded inputs by name, [rows, ...].

    Args:
        where: the file, for messages.
        inputs: inputs in order.
        most_rows: largest batch.
        integers_below: limit of integers.

    Raises:
        SourceError: an input is text, or one row of it is too large.
    """
    axes, sizes = batch_axes(inputs), chosen_sizes(inputs, SIZE)
    shapes = {
        tensor.name: [
            sizes[tensor.name, axis] if isinstance(size, str) else size
            for axis, size in enumerate(tensor.dims)
        ]
        for tensor in inputs
    }
    rows = min(ROWS, most_rows)
    for tensor in inputs:
        if tensor.datatype == "BYTES":
            raise SourceError(ask_for(where, inputs, f"input '{tensor.name}' is text"))
        axis = axes[tensor.name]
        one = math.prod(s for a, s in enumerate(shapes[tensor.name]) if a != axis)
        row_bytes = one * DATATYPES[tensor.datatype].itemsize
        if row_bytes > MAX_BYTES:
            raise SourceError(
                ask_for(where, inputs, f"a row of '{tensor.name}' has {row_bytes:,} bytes")
            )
        rows = min(rows, max(MAX_BYTES // max(row_bytes, 1), 1))
    generator = np.random.default_rng(SEED)
    found = {}
    for tensor in inputs:
        shape = list(shapes[tensor.name])
        if (axis := axes[tensor.name]) is not None:
            shape = [rows, *shape[:axis], *shape[axis + 1 :]]
        else:
            shape = [rows, *shape]
        found[tensor.name] = _values(generator, tensor, shape, integers_below)
        if axis is None:  # shared by all rows
            found[tensor.name][:] = found[tensor.name][:1]
    return found


def ask_for(where: str, inputs: Sequence[ReadTensor], reason: str) -> str:
    """Returns the request for examples: names, datatypes and shapes of the arrays to give."""
    axes = batch_axes(inputs)
    wanted = ", ".join(
        f"{t.name}: {'text' if t.datatype == 'BYTES' else DATATYPES[t.datatype].name} "
        f"[{', '.join(_words(t, axes[t.name]))}]"
        for t in inputs
    )
    return (
        f"{where} needs example inputs, which cannot be made up ({reason}); give --examples x.npz "
        f"with {wanted}"
    )


def _words(tensor: ReadTensor, batch_axis: int | None) -> list[str]:
    """Returns the sizes of the array to give, in the model's own form."""
    return [
        "rows" if axis == batch_axis else str(size) if size != UNNAMED else "?"
        for axis, size in enumerate(tensor.dims)
    ]


def _values(
    generator: np.random.Generator, tensor: ReadTensor, shape: list[int], integers_below: int
) -> Array:
    dtype = DATATYPES[tensor.datatype]
    if dtype.kind == "f":
        return generator.standard_normal(shape, np.float32).astype(dtype)
    if "mask" in tensor.name.lower() or dtype.kind == "b":
        return np.ones(shape, dtype)
    most = 256 if tensor.datatype == "UINT8" else integers_below
    return generator.integers(0, most, shape).astype(dtype)
