"""Arrays of a batch of steps of sequences: adds their states and controls, and takes new states.

In: steps, each of another sequence. Out: every input of the artifact, and of its outputs those that
callers get. The states that the run gave replace those of the sequences.

Rules: a run that fails changes no state; nor does the run of a step whose caller has stopped
waiting, since another step of its sequence may run meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.sequence_spec import CONTROLS, Control
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import DATATYPES, Array
from services.errors import BackendError
from services.inference.scheduling.axis_arrays import AxisArrays
from services.inference.scheduling.batch_arrays import BatchArrays, Buffer, concatenate
from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.sequence_slots import OpenSequence
from services.queueing.memory_queue import StepEntry
from services.queueing.records import Lane, SequenceStep


def arrays_of(
    lane: Lane, signature: Signature, padded_rows: Callable[[int], int]
) -> "BatchArrays | StatefulArrays":
    """Returns the converter for the batches of a signature.

    Args:
        lane: of the batches.
        signature: with all tensors of the artifact.
        padded_rows: `BatchRules.padded_rows`.
    """
    if signature.sequence is not None:
        return StatefulArrays(lane, signature, padded_rows)
    return (BatchArrays if signature.is_plain else AxisArrays)(lane, signature)


class StatefulArrays:
    """Concatenates and splits the arrays of steps."""

    def __init__(self, lane: Lane, signature: Signature, padded_rows: Callable[[int], int]) -> None:
        sequence = signature.sequence
        assert sequence is not None
        called = for_callers(signature)
        self._lane, self._padded_rows = lane, padded_rows
        self._called = (BatchArrays if called.is_plain else AxisArrays)(lane, called)
        self._is_direct = sequence.strategy == "direct"
        inputs = {spec.name: spec for spec in signature.inputs}
        outputs = {spec.name: spec for spec in signature.outputs}
        self._axes = {spec.name: spec.batch_axis for spec in (*called.inputs, *signature.outputs)}
        self._states = [
            (inputs[name], outputs[state.output]) for name, state in sequence.states.items()
        ]
        declared = [(name, getattr(sequence, name)) for name in CONTROLS]
        self._controls: list[tuple[str, TensorSpec, Control]] = [
            (name, inputs[control.input], control) for name, control in declared if control
        ]
        self._id = None if sequence.id is None else inputs[sequence.id]

    def join(self, batch: Batch, buffer: Buffer) -> Mapping[str, Array]:
        """Returns every input of the artifact; see `BatchArrays.join`."""
        places = _places(batch)
        inputs = dict(self._called.join(batch, buffer))
        rows: Sequence[int] = range(len(places))
        size, filling = batch.padded_rows, batch.padded_rows - len(places)
        if self._is_direct:
            rows = [place.row for place in places]
            size, filling = self._padded_rows(max(rows) + 1), 0
            source = _sources(rows, size)
            for name, array in inputs.items():
                axis = self._axes[name]
                inputs[name] = array if axis is None else array.take(source, axis)
            places = [places[number] for number in source]
        for number, (spec, _) in enumerate(self._states):
            parts = [place.states[number] for place in places]
            inputs[spec.name] = _joined(parts + parts[-1:] * filling, spec, size, buffer)
        if self._controls or self._id is not None:
            steps = [entry.request.sequence for entry in batch.entries]
            for name, spec, control in self._controls:
                inputs[spec.name] = _control(name, spec, control, steps, rows, size, buffer)
            if self._id is not None:
                inputs[self._id.name] = _ids(self._id, steps, rows, size, buffer)
        return inputs

    def split(
        self, outputs: Mapping[str, Array], batch: Batch, *, owned: bool = False
    ) -> list[Mapping[str, Array]]:
        """Returns each entry's part of the outputs; see `BatchArrays.split`. Keeps the states.

        Raises:
            BackendError: an output is missing, or has another shape than the signature says.
        """
        places = _places(batch)
        rows: Sequence[int] = range(len(places))
        size, found = batch.padded_rows, outputs
        if self._is_direct:
            rows = [place.row for place in places]
            size = self._padded_rows(max(rows) + 1)
            order = [*rows, *[rows[-1]] * (batch.padded_rows - len(rows))]
            found = {
                name: array.take(order, axis) if _has(array, axis, max(rows)) else array
                for name, array in outputs.items()
                for axis in (self._axes.get(name),)
            }
        parts = self._called.split(found, batch, owned=owned)
        if not self._states:
            return parts
        wholes = [self._checked(after, outputs, size) for _, after in self._states]
        states = zip(*(_copied_rows(*whole, rows) for whole in wholes), strict=True)
        for entry, place, after in zip(batch.entries, places, states, strict=True):
            if not entry.dead:
                place.states = after
        return parts

    def _checked(
        self, spec: TensorSpec, outputs: Mapping[str, Array], size: int
    ) -> tuple[Array, int | None]:
        """Returns a state after a run, and its batch axis."""
        axis = spec.batch_axis
        wanted = [size if axis == place else n for place, n in enumerate(spec.shape)]
        array = outputs.get(spec.name)
        dtype = DATATYPES[spec.datatype]
        if array is None or [*array.shape] != wanted or array.dtype != dtype:
            found = "nothing" if array is None else f"{array.dtype} {[*array.shape]}"
            raise BackendError(
                f"model {self._lane} returned {found} as state '{spec.name}'; its signature has "
                f"{spec.datatype} {wanted}"
            )
        return array, axis


def _places(batch: Batch) -> list[OpenSequence]:
    return [entry.place for entry in cast("list[StepEntry]", batch.entries)]  # type: ignore[misc]


def _sources(rows: Sequence[int], size: int) -> list[int]:
    """Returns for each row of a batch the number of its step; of the first one if it has none."""
    source = [0] * size
    for number, row in enumerate(rows):
        source[row] = number
    return source


def _has(array: Array, axis: int | None, row: int) -> bool:
    """True if an array has a row; the check of the outputs tells what it lacks."""
    return axis is not None and array.ndim > axis and array.shape[axis] > row


def _joined(parts: list[Array], spec: TensorSpec, size: int, buffer: Buffer) -> Array:
    axis = spec.batch_axis
    if axis is None:
        return parts[0]
    if axis:
        return np.concatenate(parts, axis)
    whole = buffer(spec.name, (size, *spec.shape[1:]), DATATYPES[spec.datatype])
    concatenate(parts, whole)
    return whole


def _copied_rows(whole: Array, axis: int | None, rows: Sequence[int]) -> list[Array]:
    """Returns a copy of each row of a state, with its batch axis: a view would keep the batch."""
    if axis is None:
        return [whole.copy() for _ in rows]
    if axis:
        before = (slice(None),) * axis
        return [whole[(*before, slice(row, row + 1))].copy() for row in rows]
    if isinstance(rows, range):  # half the time
        return [part.copy() for part in whole[: len(rows), np.newaxis]]
    return [whole[row : row + 1].copy() for row in rows]


def _empty(spec: TensorSpec, size: int, buffer: Buffer) -> tuple[Array, Array]:
    """Returns the memory of a control, and a view with one element for each row."""
    shape = tuple(size if axis == spec.batch_axis else n for axis, n in enumerate(spec.shape))
    whole = buffer(spec.name, shape, DATATYPES[spec.datatype])
    return whole, whole.reshape(-1)


def _control(
    name: str,
    spec: TensorSpec,
    control: Control,
    steps: Sequence[SequenceStep | None],
    rows: Sequence[int],
    size: int,
    buffer: Buffer,
) -> Array:
    whole, flat = _empty(spec, size, buffer)
    flat[...] = control.false  # rows without a step, too
    for step, row in zip(steps, rows, strict=True):
        assert step is not None
        if name == "ready" or (step.is_start if name == "start" else step.is_end):
            flat[row] = control.true
    return whole


def _ids(
    spec: TensorSpec,
    steps: Sequence[SequenceStep | None],
    rows: Sequence[int],
    size: int,
    buffer: Buffer,
) -> Array:
    whole, flat = _empty(spec, size, buffer)
    is_text = spec.datatype == "BYTES"
    flat[...] = b"" if is_text else 0
    for step, row in zip(steps, rows, strict=True):
        assert step is not None
        flat[row] = step.id.encode() if is_text else int(step.id)
    return whole
