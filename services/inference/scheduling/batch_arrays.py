"""The arrays of a batch: joined, padded and filled in before the run, and split after it.

In: the inputs of each entry. Out: one array an input, and each entry's own rows of the outputs.
This is the one copy between the wire and the backend; a batch of one request that needs nothing
filled in is handed over as it came.
"""

from collections.abc import Callable, Mapping

import numpy as np

from model_store.signature import Signature, TensorSpec
from model_store.tensors import DATATYPES, Array
from services.errors import BackendError
from services.inference.scheduling.batcher import Batch
from services.queueing.memory_queue import Entry
from services.queueing.records import Lane

COPIED_BYTES = 32 * 1024
"""Of one output of one request. To copy so many takes 2 µs, and 1 MB some 0.1 ms."""

Buffer = Callable[[str, tuple[int, ...], np.dtype[np.generic]], Array]
"""`Backend.buffer`: memory for one input."""


class BatchArrays:
    """Joins and splits for one signature."""

    def __init__(self, lane: Lane, signature: Signature) -> None:
        self._lane = lane
        self._specs = [(spec, DATATYPES[spec.datatype]) for spec in signature.inputs]
        self._padding = signature.padding
        self._outputs = [spec.name for spec in signature.outputs]

    def join(self, batch: Batch, buffer: Buffer) -> Mapping[str, Array]:
        """Every input of the signature, [padded rows, ...].

        Args:
            batch: whose entries to join, in order.
            buffer: where to write what must be copied.
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
                np.concatenate(parts, out=whole[: batch.rows] if padded else whole)
            else:
                whole = inputs[spec.name] = self._join_padded(batch, spec, dtype, buffer)
            if padded:
                # A real row once more: zeros may be what no model takes, such as a length of 0.
                whole[batch.rows :] = whole[batch.rows - 1]
        return inputs

    def split(self, outputs: Mapping[str, Array], batch: Batch) -> list[Mapping[str, Array]]:
        """Each entry's own rows of what it asked for, cut back where they were padded.

        Small ones are views, and large ones copies: an answer may wait for its caller for long, and
        a view would keep the whole batch, or memory that the runtime wants for its next run.

        Raises:
            BackendError: an output is missing, or has not the batch's rows.
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
            if len(names) == 1:  # as most are
                part = {names[0]: outputs[names[0]][start:stop]}
            else:
                part = {name: outputs[name][start:stop] for name in names}
            if self._padding is not None and entry.request.length != batch.length:
                self._cut(part, entry.request.length or 0)
            for name in names:
                if part[name].nbytes >= COPIED_BYTES:
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
        """One input of entries whose lengths differ; the mask or lengths filled in."""
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
            if given is None:  # what a request may leave out: a mask of ones, or the length
                given = np.asarray(1 if spec.name == padding.mask else own, dtype)
            rows = whole[start:stop]
            (rows if axis is None else rows[(slice(None),) * axis + (slice(own),)])[...] = given
            start = stop
        return whole

    def _tail(
        self, spec: TensorSpec, entries: list[Entry], axis: int | None, length: int
    ) -> tuple[int, ...]:
        """Dimensions behind the rows: those of the requests, with the padded one set."""
        given = [e.request.inputs[spec.name] for e in entries if spec.name in e.request.inputs]
        tail = list(given[0].shape[1:] if given else spec.shape[1:])
        if axis is not None:
            tail[axis - 1] = length
        return tuple(tail)
