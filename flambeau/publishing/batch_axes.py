"""Finds the batch axis of each input and output of a caller's model, by running it.

In: a model and one example. Out: the axes, and the model's outputs for the example.

Rules: the first and the last row, each alone, must get the answers that they have in the batch. The
batch is the first axis of all inputs if the model runs with one row of them; if it then gives other
answers, it is refused. Otherwise, axes of equal size are tried; inputs without such an axis are
shared by all rows. If none fits, the model has no batch. What the caller says is not tried.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from flambeau.publishing.errors import CaptureError, ExampleError
from flambeau.publishing.model_run import Model, check_finite, gap, run_model

MAX_TRIALS = 64
"""Limit on the combinations of axes that are tried."""
REPEATED_ROWS = 2
"""Rows of a batch that is made of an example of one row."""

Axes = dict[str, int | None]
"""Batch axis by name; None for a tensor without one."""

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """Batch axes of a model, and its outputs in order."""

    inputs: Axes
    outputs: Axes

    @property
    def has_batch(self) -> bool:
        """False for a model that runs one request at a time."""
        return _has_batch(self.inputs)

    def notes(self) -> tuple[str, ...]:
        """Returns lines for the user about axes that are not the first."""
        if not self.has_batch:
            return ("the model has no batch axis, so it runs one request at a time",)
        told = [
            f"input '{name}' has no batch axis; requests share a batch if they have the same value"
            if axis is None
            else f"the batch is axis {axis} of input '{name}'"
            for name, axis in self.inputs.items()
            if axis != 0
        ]
        return tuple(told)


def find_batch_axes(
    model: Model,
    inputs: Mapping[str, Tensor],
    names: Sequence[str] | None = None,
    told: Mapping[str, int | None] | None = None,
    max_batch_size: int = 32,
) -> BatchAxes:
    """Returns the batch axes.

    Args:
        model: the model.
        inputs: an example.
        names: names of the outputs; see `named_outputs`.
        told: axes that the caller says, by input.
        max_batch_size: rows that the model is run with, at most.

    Raises:
        ExampleError: the model does not run, or an axis does not fit its input.
        CaptureError: answers change from run to run, or depend on the other rows of a batch.
    """
    told = told or {}
    _check_told(inputs, told)
    axes: Axes = {name: 0 if tensor.ndim else None for name, tensor in inputs.items()} | dict(told)
    rows = _rows(inputs, axes)
    if rows is None and set(told) == set(inputs):
        row_count(inputs, axes)  # raises
    if rows is not None:
        try:
            batch = rows_of(inputs, axes, 0, max_batch_size)
            return BatchAxes(axes, _output_axes(model, names, batch, axes))
        except ExampleError:  # it does not run with fewer rows of these axes
            if set(told) == set(inputs):
                raise
    _run_twice(model, names, inputs)  # raises if it does not run at all
    for tried in itertools.islice(_combinations(inputs, told), MAX_TRIALS):
        if tried != axes:
            with suppress(ExampleError, CaptureError):
                return BatchAxes(tried, _output_axes(model, names, inputs, tried))
    none: Axes = {name: told.get(name) for name in inputs}
    return BatchAxes(none, _output_axes(model, names, inputs, none))


def rows_of(
    inputs: Mapping[str, Tensor], axes: Mapping[str, int | None], start: int, rows: int
) -> dict[str, Tensor]:
    """Returns at most so many rows of a batch, and shared inputs as they are."""
    found = {}
    for name, tensor in inputs.items():
        axis = axes[name]
        if axis is None:
            found[name] = tensor
        else:
            found[name] = tensor.narrow(axis, start, min(rows, tensor.shape[axis] - start))
    return found


def row_count(inputs: Mapping[str, Tensor], axes: Mapping[str, int | None]) -> int:
    """Returns the rows of a batch; 1 for inputs without a batch.

    Raises:
        ExampleError: inputs differ in it.
    """
    rows = _rows(inputs, axes)
    if rows is None:
        sizes = {n: inputs[n].shape[axis] for n, axis in axes.items() if axis is not None}
        raise ExampleError(f"examples differ in their number of rows: {sizes}; give all the same")
    return rows


def repeated(inputs: Mapping[str, Tensor], axes: Mapping[str, int | None], rows: int) -> Tensors:
    """Returns a batch of so many rows: the first ones, repeated where there are fewer.

    Its tensors are contiguous, because torch.export takes strides for constants.
    """
    found = rows_of(inputs, axes, 0, rows)
    have = row_count(found, axes)
    for name, axis in axes.items():
        if axis is not None and have < rows:
            places = torch.arange(rows) % have
            found[name] = found[name].index_select(axis, places)
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _has_batch(axes: Mapping[str, int | None]) -> bool:
    return any(axis is not None for axis in axes.values())


def _rows(inputs: Mapping[str, Tensor], axes: Mapping[str, int | None]) -> int | None:
    """Returns the rows; None where inputs differ."""
    sizes = {inputs[name].shape[axis] for name, axis in axes.items() if axis is not None}
    if not sizes:
        return 1
    return sizes.pop() if len(sizes) == 1 else None


def _check_told(inputs: Mapping[str, Tensor], told: Mapping[str, int | None]) -> None:
    for name, axis in told.items():
        if name not in inputs:
            raise ExampleError(f"batch_axes names input '{name}'{nearest_name(name, inputs)}")
        shape = list(inputs[name].shape)
        if axis is None:
            continue
        if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < len(shape):
            allowed = f"an axis from 0 to {len(shape) - 1}, or None" if shape else "None"
            raise ExampleError(
                f"batch_axes['{name}'] is {axis!r}, and the input is {shape}; give {allowed}"
            )


def _combinations(inputs: Mapping[str, Tensor], told: Mapping[str, int | None]) -> Iterator[Axes]:
    """Yields axes of equal size: those of the first axes first, with few shared inputs first."""
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
    first = [shape[0] for shape in shapes.values() if shape]
    rest = [size for shape in shapes.values() for size in shape[1:]]
    for rows in dict.fromkeys([*first, *rest]):
        choices = [
            [told[name]]
            if name in told
            else [*(axis for axis, size in enumerate(shape) if size == rows), None]
            for name, shape in shapes.items()
        ]
        found = itertools.islice(itertools.product(*choices), MAX_TRIALS)
        for axes in sorted(found, key=lambda one: (one.count(None), sum(filter(None, one)))):
            tried = dict(zip(shapes, axes, strict=True))
            if _has_batch(tried) and _rows(inputs, tried) is not None:
                yield tried


def _run_twice(
    model: Model, names: Sequence[str] | None, inputs: Mapping[str, Tensor]
) -> dict[str, Array]:
    """Returns the outputs; refuses a model whose outputs change from run to run."""
    first, second = run_model(model, names, inputs), run_model(model, names, inputs)
    for name, one in first.items():
        if (found := gap(one, second[name])) is not None:
            raise CaptureError(
                f"the model gives different outputs for the same rows (output '{name}' {found}); "
                "remove what is random, such as dropout that stays on in evaluation, or state that "
                "it keeps between calls"
            )
    check_finite(first)
    return first


def _output_axes(
    model: Model, names: Sequence[str] | None, inputs: Mapping[str, Tensor], axes: Axes
) -> Axes:
    """Returns the batch axis of each output, found by running single rows.

    Raises:
        ExampleError: the model does not run with one row, or with two.
        CaptureError: it gives a row other answers than in the batch.
    """
    together = _run_twice(model, names, inputs)
    rows = row_count(inputs, axes)
    if not _has_batch(axes):
        return dict.fromkeys(together)
    if is_repeated := rows == 1:
        alone, rows = together, REPEATED_ROWS
        together = run_model(model, names, repeated(inputs, axes, rows))
        parts = [(row, alone) for row in range(rows)]
    else:
        parts = [
            (row, run_model(model, names, rows_of(inputs, axes, row, 1))) for row in (0, rows - 1)
        ]
    found = {name: _output_axis(name, array, parts, rows) for name, array in together.items()}
    shared = [name for name, axis in found.items() if axis is None]
    if len(shared) == len(found):
        raise CaptureError(_not_by_row(shared[0], together[shared[0]], rows))
    if shared and is_repeated:
        raise CaptureError(
            f"output '{shared[0]}' seems to have no batch, which one example row cannot tell; give "
            "two rows that differ"
        )
    return found


def _output_axis(
    name: str, together: Array, parts: Sequence[tuple[int, Mapping[str, Array]]], rows: int
) -> int | None:
    """Returns the batch axis of an output, from its values for single rows of the batch."""
    alone = parts[0][1][name]
    if all(gap(together, part[name]) is None for _, part in parts):
        return None
    axes = [
        axis
        for axis, size in enumerate(together.shape)
        if size == rows and alone.shape == (*together.shape[:axis], 1, *together.shape[axis + 1 :])
    ]
    if not axes:
        raise CaptureError(_not_by_row(name, together, rows))
    (axis,) = axes
    for row, part in parts:
        if (found := gap(together.take([row], axis), part[name])) is not None:
            raise CaptureError(
                f"the answer to a row depends on the other rows of its batch (output '{name}' "
                f"{found}), and servers make batches of any requests; let the model compute each "
                "row by itself, or say its axes, such as batch_axes={'state': 1, 'image': None}"
            )
    return axis


def _not_by_row(name: str, array: Array, rows: int) -> str:
    return (
        f"output '{name}' is {list(array.shape)} for {rows} rows; return a row for each row of the "
        "inputs, [rows, ...], or say which inputs have no batch, batch_axes={'image': None}"
    )
