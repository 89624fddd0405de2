"""Arrays of a batch: concatenates and pads inputs before the run, and splits outputs after it.

In: the inputs of each entry. Out: one array per input, and each entry's own rows of the outputs.
This is the only copy between the wire and the backend; a batch of one request that needs no
padding and no optional input is passed on without a copy.
"""

from collections.abc import Callable, Mapping

import numpy as np

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import DATATYPES, Array
from services.errors import BackendError
from services.inference.scheduling.batch_rules import Batch
from services.queueing.memory_queue import Entry
from services.queueing.records import Lane

COPIED_BYTES = 32 * 1024
"""Outputs of a request from this size on are copied (2 µs for so many bytes, 0.1 ms for 1 MB), so
that an answer that waits for its caller keeps no batch in memory (`make adversarial`)."""

QUIET_ELEMENTS = 500
"""From so many elements on, numpy releases the interpreter lock (GIL) while it copies an array."""
QUIET_PART_BYTES = 256 * 1024
"""Larger parts are copied with the lock released: 25 µs or more each."""
QUIET_COPY_BYTES = 2**20
"""Bytes that are copied in one go while the lock is held."""

Buffer = Callable[[str, tuple[int, ...], np.dtype[np.generic]], Array]
"""`Backend.buffer`: allocates memory for one input."""


def is_copied(part: Array, whole: Array, *, owned: bool) -> bool:
    """Returns True if an entry gets a copy of its part of an output."""
    return part.nbytes >= COPIED_BYTES and not (owned and part.size == whole.size)


def is_input(whole: Array, batch: Batch) -> bool:
    """True if an output is an input of the batch's only entry, given back: nobody writes to it."""
    if len(batch.entries) != 1 or whole.flags.writeable:
        return False
    given = batch.entries[0].request.inputs.values()
    return any(np.may_share_memory(whole, one) for one in given)


def concatenate(parts: list[Array], whole: Array) -> None:
    """Copies parts behind each other into memory of their joint shape.

    numpy releases the GIL once for each part, and a busy event loop may take it each time: 64
    images of 48 KiB took 0.76 ms in place of 0.35 (docs/adr/0065). A row that is one element, of
    raw bytes, is copied with the lock held.
    """
    row_bytes = whole[:1].nbytes
    if (
        whole[:1].size <= QUIET_ELEMENTS
        or whole.dtype.hasobject
        or max(part.nbytes for part in parts) > QUIET_PART_BYTES
        or not all(part.flags.c_contiguous and part.dtype == whole.dtype for part in parts)
    ):
        np.concatenate(parts, out=whole)
        return
    row = np.dtype((np.void, row_bytes))
    into, raw = np.frombuffer(whole, row), [np.frombuffer(part, row) for part in parts]
    at_once = max(QUIET_COPY_BYTES // max(part.nbytes for part in parts), 1)
    start = 0
    for first in range(0, len(raw), at_once):
        some = raw[first : first + at_once]
        stop = start + sum(map(len, some))
        np.concatenate(some, out=into[start:stop])
        start = stop


def is_small(batch: Batch, most_bytes: int) -> bool:
    """Returns True if the inputs of a batch have no more bytes; False for rows of many texts."""
    left = most_bytes
    for entry in batch.entries:
        for array in entry.request.inputs.values():
            if not array.dtype.hasobject:
                left -= array.nbytes
            elif array.size == 1:
                left -= len(array.item(0))
            else:
                return False
        if left < 0:
            return False
    return True


class BatchArrays:
    """Concatenates and splits the arrays of one signature."""

    def __init__(self, lane: Lane, signature: Signature) -> None:
        self._lane = lane
        self._specs = [(spec, DATATYPES[spec.datatype]) for spec in signature.inputs]
        self._padding = signature.padding
        self._outputs = [spec.name for spec in signature.outputs]

    def join(self, batch: Batch, buffer: Buffer) -> Mapping[str, Array]:
        """Returns every input of the signature, [padded rows, ...].

        Args:
            batch: entries to concatenate, in order.
            buffer: allocator of the memory that inputs are copied into.
        """
        entries = batch.entries
        if len(entries) == 1 and batch.padded_rows == batch.rows:
            request = entries[0].request
            if len(request.inputs) == len(self._specs) and batch.length == request.length:
                return request.inputs
        padded = batch.padded_rows != batch.rows
        inputs: dict[str, Array] = {}
        for spec, dtype in self._specs:
            if batch.length is None:
                parts = [entry.request.inputs[spec.name] for entry in entries]
                shape = (batch.padded_rows, *parts[0].shape[1:])
                whole = inputs[spec.name] = buffer(spec.name, shape, dtype)
                concatenate(parts, whole[: batch.rows] if padded else whole)
            else:
                whole = inputs[spec.name] = self._join_padded(batch, spec, dtype, buffer)
            if padded:
                # Repeats a real row: a model may reject zeros, such as a length of 0.
                whole[batch.rows :] = whole[batch.rows - 1]
        return inputs

    def split(
        self, outputs: Mapping[str, Array], batch: Batch, *, owned: bool = False
    ) -> list[Mapping[str, Array]]:
        """Returns each entry's rows of the outputs that it requested, without their padding.

        Small outputs are views and large ones copies: a response may wait long for a slow client,
        and a view would retain the whole batch, or memory that the runtime needs for its next run.
        An output that is one entry's alone is not copied if it is `owned`.

        Args:
            outputs: the backend's.
            batch: entries that it ran.
            owned: `Backend.owns_outputs`.

        Raises:
            BackendError: an output is missing, or its row count differs from the batch's.
        """
        for name in self._outputs:
            if name not in outputs:
                raise BackendError(
                    f"model {self._lane} returned no output '{name}'; its signature has it"
                )
            shape = outputs[name].shape
            if shape[:1] != (batch.padded_rows,):
                raise BackendError(
                    f"model {self._lane} returned output '{name}' of shape {list(shape)} for a "
                    f"batch of {batch.padded_rows} rows; its first dimension must be the batch"
                )
        parts: list[Mapping[str, Array]] = []
        start = 0
        for entry in batch.entries:
            stop = start + entry.request.rows
            names = entry.request.outputs or self._outputs
            if len(names) == 1:  # the usual case
                part = {names[0]: outputs[names[0]][start:stop]}
            else:
                part = {name: outputs[name][start:stop] for name in names}
            if self._padding is not None and entry.request.length != batch.length:
                self._cut(part, entry.request.length or 0)
            for name in names:
                whole = outputs[name]
                if is_copied(part[name], whole, owned=owned) and not is_input(whole, batch):
                    part[name] = part[name].copy()
            parts.append(part)
            start = stop
        return parts

    def _cut(self, part: dict[str, Array], length: int) -> None:
        assert self._padding is not None
        for name in part.keys() & self._padding.outputs.keys():
            axis = self._padding.outputs[name]
            part[name] = part[name][(slice(None),) * axis + (slice(length),)]

    def _join_padded(
        self, batch: Batch, spec: TensorSpec, dtype: "np.dtype[np.generic]", buffer: Buffer
    ) -> Array:
        """Returns one input of entries of different lengths; fills in an absent mask or length."""
        padding, length = self._padding, batch.length
        assert padding is not None
        assert length is not None
        axis = padding.axis_of(spec.name)
        tail = self._tail(spec, batch.entries, axis, length)
        whole = buffer(spec.name, (batch.padded_rows, *tail), dtype)
        whole[...] = 0 if spec.name == padding.mask else padding.values.get(spec.name, 0)
        start = 0
        for entry in batch.entries:
            stop = start + entry.request.rows
            given = entry.request.inputs.get(spec.name)
            own = entry.request.length
            if given is None:  # an optional input: a mask of ones, or the length
                given = np.asarray(1 if spec.name == padding.mask else own, dtype)
            rows = whole[start:stop]
            (rows if axis is None else rows[(slice(None),) * axis + (slice(own),)])[...] = given
            start = stop
        return whole

    def _tail(
        self, spec: TensorSpec, entries: list[Entry], axis: int | None, length: int
    ) -> tuple[int, ...]:
        """Returns the requests' dimensions after the rows, with the padded axis set to `length`."""
        given = [e.request.inputs[spec.name] for e in entries if spec.name in e.request.inputs]
        tail = list(given[0].shape[1:] if given else spec.shape[1:])
        if axis is not None:
            tail[axis - 1] = length
        return tuple(tail)
