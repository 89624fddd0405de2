"""Runs an original on example rows, and records its outputs: the reference of its artifacts.

Rules: it runs in a separate process with limits; its answers must be finite, the same twice, and
independent of the other rows of a batch, as servers form batches of any requests. Answers of a
model that takes one row at a time may differ in shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from flambeau.protocol.rounding import gap
from flambeau.protocol.row_steps import in_steps
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array, TensorError, datatype_of
from training.errors import DataError, IsolationError, TargetError
from training.importing.original import Original
from training.network.row_dependence import ROUNDING_SHARE
from training.process.isolated_run import run_limited
from training.recipe.recipe import ExportLimits
from training.verification.runners import file_runner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Outputs of rows that have one shape."""

    rows: list[int]
    """Numbers of the rows among the examples."""
    outputs: dict[str, Array]
    """By name, [rows, ...]."""


def record_outputs(
    original: Original, inputs: Mapping[str, Array], limits: ExportLimits
) -> list[Recorded]:
    """Returns the original's outputs for the rows, the most frequent shapes first.

    Args:
        original: the model.
        inputs: by name, [rows, ...].
        limits: limits of the process.

    Raises:
        TargetError: it does not run, or its answers cannot be verified.
    """
    return _apart(_record, original, inputs, limits)


def record_steps(
    original: Original, inputs: Mapping[str, Array], limits: ExportLimits
) -> dict[str, Array]:
    """Returns the rows as the steps of one sequence, with the states that the original has there.

    Args:
        original: a model with sequences.
        inputs: by name, [rows, ...].
        limits: limits of the process.

    Raises:
        TargetError: it does not run.
    """
    return _apart(_steps, original, inputs, limits)


def _apart(
    call: Callable[[Original, dict[str, Array]], T],
    original: Original,
    inputs: Mapping[str, Array],
    limits: ExportLimits,
) -> T:
    try:
        return run_limited(
            call,
            original,
            dict(inputs),
            limits=limits,
        )
    except IsolationError as error:
        text = str(error)
        if text.startswith(f"{TargetError.__name__}: "):
            told = text.removeprefix(f"{TargetError.__name__}: ")
            raise TargetError(f"{original.source}: {told}") from None
        raise TargetError(f"{original.source} does not run on the examples: {text}") from None


def check_examples(
    what: str, signature: Signature, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Returns the examples in the order of the signature, after checking them.

    Args:
        what: the model, for messages.
        signature: its signature.
        inputs: by name, [rows, ...].

    Raises:
        DataError: a name, datatype, shape or number of rows does not fit the model.
    """
    specs = [
        spec for spec in signature.in_rows().inputs if spec.name in inputs or not spec.optional
    ]
    wanted = [spec.name for spec in specs]
    if set(inputs) != set(wanted):
        raise DataError(
            f"the examples have {sorted(inputs)}, and {what} takes {wanted}; give an array for each"
        )
    rows = {name: array.shape[0] if array.ndim else 0 for name, array in inputs.items()}
    if len(set(rows.values())) > 1 or 0 in rows.values():
        raise DataError(f"the examples have {rows} rows; give all the same number, at least 1")
    for spec in specs:
        array = inputs[spec.name]
        try:
            datatype = datatype_of(array)
        except TensorError as error:
            raise DataError(f"the example '{spec.name}': {error}") from error
        if datatype != spec.datatype or not spec.fits(array.shape):
            raise DataError(
                f"the example '{spec.name}' is {datatype} {list(array.shape)}, and {what} takes "
                f"{spec.datatype} {spec.shape_words()}"
            )
    return {name: np.ascontiguousarray(inputs[name]) for name in wanted}


def _steps(original: Original, inputs: dict[str, Array]) -> dict[str, Array]:
    torch.set_num_threads(1)
    signature = original.signature
    assert signature.sequence is not None
    run = file_runner(original.kind, original.precision, original.file, signature)
    return in_steps(run, inputs, signature.sequence)


def _record(original: Original, inputs: dict[str, Array]) -> list[Recorded]:
    torch.set_num_threads(1)
    signature = original.signature
    run = file_runner(original.kind, original.precision, original.file, signature)
    size, rows = signature.max_batch_size, len(next(iter(inputs.values())))
    batches = [
        {name: array[start : start + size] for name, array in inputs.items()}
        for start in range(0, rows, size)
    ]
    found = _by_shape([run(batch) for batch in batches], rows)
    again = _by_shape([run(batch) for batch in batches], rows)
    ends = {0, rows - 1}
    alone = {row: run({n: array[row : row + 1] for n, array in inputs.items()}) for row in ends}
    for name in alone[0]:
        arrays, others = ([one.outputs[name] for one in each] for each in (found, again))
        if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in arrays):
            raise TargetError(f"output '{name}' has infinite or undefined numbers")
        if len(arrays) != len(others) or not all(map(_same, arrays, others)):
            raise TargetError(
                f"output '{name}' differs between two runs of the same rows; a served model must "
                "be deterministic"
            )
        for one, row in ((each, row) for each in found for row in ends.intersection(each.rows)):
            if not _same(one.outputs[name][[one.rows.index(row)]], alone[row][name]):
                raise TargetError(_depends(original, name, row))
    return found


def _depends(original: Original, output: str, row: int) -> str:
    """Describes a row that gets another answer alone than in a batch."""
    specs = original.signature.inputs
    axes = [f"{s.batch_axis} of '{s.name}'" for s in specs if s.batch_axis is not None]
    told = f"output '{output}' of row {row} depends on the other rows of its batch"
    if original.kind == "python":
        return f"{told}; compute each row by itself"
    return (
        f"{told}, which is dimension {', '.join(axes)}; if that is another, such as the time of a "
        "recurrent network, name the batch's: --batch-axis INPUT=AXIS, or INPUT=none"
    )


def _by_shape(parts: Sequence[Mapping[str, Array]], rows: int) -> list[Recorded]:
    """Joins the outputs of batches; those of single rows only if their shapes are equal."""
    groups: dict[object, list[int]] = {}
    for number, part in enumerate(parts):
        shapes = tuple(array.shape for array in part.values()) if len(parts) == rows else ()
        groups.setdefault(shapes, []).append(number)
    return [
        Recorded(
            numbers if len(parts) == rows else list(range(rows)),
            {name: np.concatenate([parts[n][name] for n in numbers]) for name in parts[0]},
        )
        for numbers in sorted(groups.values(), key=len, reverse=True)
    ]


def _same(one: Array, other: Array) -> bool:
    return gap(one, other, ROUNDING_SHARE) is None
