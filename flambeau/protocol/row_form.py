"""Converts tensors between a model's own form and rows: every tensor [rows, ...]. Pure NumPy.

Golden rows, test splits and comparisons of outputs hold rows, whatever axes a model has: the batch
axis is moved to the front, and a tensor without one is repeated for each row. So row i of the
outputs belongs to row i of the inputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array, encode_bytes_elements

Run = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Runs a batch: inputs by name to outputs by name."""


def to_rows(
    arrays: Mapping[str, Array], specs: Sequence[TensorSpec], rows: int
) -> dict[str, Array]:
    """Returns tensors of one batch as rows; views where possible.

    Args:
        arrays: by name, in the model's form; those without a spec are left out.
        specs: their specs.
        rows: rows of the batch, 1 for a model without one.

    Raises:
        ValueError: a tensor lacks its batch axis.
    """
    found = {}
    for spec in specs:
        if spec.name not in arrays:
            continue
        array, axis = arrays[spec.name], spec.batch_axis
        if axis is None:
            found[spec.name] = np.broadcast_to(array, (rows, *array.shape))
        else:
            found[spec.name] = np.moveaxis(array, axis, 0)
    return found


def from_rows(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Returns rows as tensors of one batch, in the model's form.

    Args:
        arrays: by name, each [rows, ...]. Tensors without a batch axis have the same value in each
            row: that of the first counts.
        specs: their specs.
    """
    return {
        spec.name: arrays[spec.name][0, ...]
        if spec.batch_axis is None
        else np.moveaxis(arrays[spec.name], 0, spec.batch_axis)
        for spec in specs
        if spec.name in arrays
    }


def in_rows(run: Run, signature: Signature) -> Run:
    """Returns a function that runs a model on rows.

    Rows run together if they have the same value of each tensor without a batch axis; those of a
    model without a batch run one by one.

    Args:
        run: the model, which takes tensors in its own form.
        signature: its batch axes. Without other axes than the first, `run` itself is returned.
    """
    if signature.is_plain:
        return run

    def run_rows(inputs: Mapping[str, Array]) -> dict[str, Array]:
        parts = []
        for start, stop in _runs(inputs, signature):
            batch = {name: array[start:stop] for name, array in inputs.items()}
            found = run(from_rows(batch, signature.inputs))
            parts.append(to_rows(found, signature.outputs, stop - start))
        names = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    return run_rows


def batches_of(
    inputs: Mapping[str, Array], signature: Signature, size: int
) -> Iterator[dict[str, Array]]:
    """Yields rows as batches in the model's form.

    Args:
        inputs: by name, each [rows, ...].
        signature: the batch axes.
        size: most rows of a batch.
    """
    for first, stop in _runs(inputs, signature):
        for start in range(first, stop, size):
            batch = {n: array[start : min(start + size, stop)] for n, array in inputs.items()}
            yield batch if signature.is_plain else from_rows(batch, signature.inputs)


def batch_of(inputs: Mapping[str, Array], signature: Signature, rows: int) -> dict[str, Array]:
    """Returns a batch in the model's form: the first rows, repeated to fill it.

    Rows whose value of a tensor without a batch axis differs from the first row's are left out.

    Args:
        inputs: by name, each [rows, ...].
        signature: the batch axes.
        rows: rows of the batch; 1 for a model without one.
    """
    if not signature.is_plain:
        _, stop = next(iter(_runs(inputs, signature)))
        inputs = {name: array[:stop] for name, array in inputs.items()}
    filled = {name: np.resize(array, (rows, *array.shape[1:])) for name, array in inputs.items()}
    return filled if signature.is_plain else from_rows(filled, signature.inputs)


def value_bytes(array: Array) -> bytes:
    """Returns bytes that are equal for equal arrays of one datatype and shape."""
    return encode_bytes_elements(array) if array.dtype.hasobject else array.tobytes()


def _runs(inputs: Mapping[str, Array], signature: Signature) -> list[tuple[int, int]]:
    """Returns the first row, and the row after the last, of rows that can run together."""
    rows = len(next(iter(inputs.values())))
    if not signature.has_batch:
        return [(row, row + 1) for row in range(rows)]
    shared = [
        inputs[spec.name]
        for spec in signature.inputs
        if spec.batch_axis is None and spec.name in inputs
    ]
    if not shared:
        return [(0, rows)]
    found, start = [], 0
    before: list[bytes] | None = None
    for row in range(rows):
        values = [value_bytes(array[row, ...]) for array in shared]
        if before is not None and values != before:
            found.append((start, row))
            start = row
        before = values
    return [*found, (start, rows)]
