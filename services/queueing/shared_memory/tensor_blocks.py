"""Tensors of messages: small ones inside, large ones in an arena, where the receiver views them.

In: arrays; and at the other end, the records of tensors. Out: the records, and arrays again.

Rules:
- a large tensor is copied once, by its sender, in steps of less than a millisecond;
- its block is free when nothing views the array that the receiver made of it: a weak reference
  tells. So a batch that runs keeps its blocks, whatever became of its requests;
- texts are copied by both ends, in steps, too.
"""

import math
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from flambeau.protocol.tensors import (
    DATATYPES,
    Array,
    bytes_elements_in_pieces,
    bytes_elements_in_slices,
    datatype_of,
    encode_bytes_elements,
    raw_view,
)
from services.queueing.records import InferRequest
from services.queueing.redis_streams.wire import INLINE_TEXTS
from services.queueing.shared_memory.arena import Arena
from services.queueing.shared_memory.link_memory import LinkMemory
from services.queueing.shared_memory.messages import TensorMessage

INSIDE_BYTES = 8 * 1024
"""Largest tensor inside a message: to copy it costs less than its block would."""
AT_ONCE_BYTES = 512 * 1024
"""Bytes that one turn of the loop copies into new memory: some 0.3 ms."""
KEPT_BYTES = 16 * 1024 * 1024
"""Memory of an arena that stays when none of it is used."""

DATATYPE_NAMES = {dtype: name for name, dtype in DATATYPES.items() if name not in ("BF16", "BYTES")}
"""BF16 travels as the UINT16 it is in memory."""


class NoRoomError(Exception):
    """The arena has no gap for a tensor.

    Args:
        nbytes: size of the tensor, and of the blocks of those before it in the same message.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"no room for {nbytes} bytes")
        self.nbytes = nbytes


def is_small(arrays: Mapping[str, Array]) -> bool:
    """Returns True if arrays can be sent within one turn of the loop."""
    left = AT_ONCE_BYTES
    for array in arrays.values():
        if array.dtype.kind in "OSU":
            if array.size > INLINE_TEXTS:
                return False
            left -= sum(map(len, array.ravel().tolist()))
        else:
            left -= array.nbytes
    return left >= 0


def records_inside(arrays: Mapping[str, Array]) -> tuple[TensorMessage, ...] | None:
    """Returns the records of tensors that all go inside messages, the usual case; else None."""
    records = []
    for name, array in arrays.items():
        datatype = DATATYPE_NAMES.get(array.dtype)
        if datatype is None or array.nbytes > INSIDE_BYTES:
            return None
        records.append(TensorMessage(name, datatype, array.shape, array.tobytes()))
    return tuple(records)


def joined_records(requests: Sequence[InferRequest]) -> tuple[TensorMessage, ...]:
    """Returns the records of the inputs of several requests: their rows, one after another."""
    rows = sum([request.rows for request in requests])
    records = []
    for name, array in requests[0].inputs.items():
        data = b"".join([request.inputs[name].tobytes() for request in requests])
        records.append(
            TensorMessage(name, DATATYPE_NAMES[array.dtype], (rows, *array.shape[1:]), data)
        )
    return tuple(records)


def arrays_inside(records: Sequence[TensorMessage]) -> dict[str, Array] | None:
    """Returns the arrays of such records; None if any tensor has a block, or is of texts."""
    arrays: dict[str, Array] = {}
    for record in records:
        if record.block >= 0 or record.datatype == "BYTES":
            return None
        # An empty buffer has no room for an element, and NumPy asks for that of none, too.
        data = record.data or None
        arrays[record.name] = np.ndarray(record.shape, DATATYPES[record.datatype], data)
    return arrays


class TensorWriter:
    """The sender's end.

    Args:
        memory: of the link.
    """

    def __init__(self, memory: LinkMemory) -> None:
        self._memory = memory
        self._arena = Arena(len(memory.own))
        self._highest = 0
        """End of the highest block since the arena was last empty."""

    def records(self, arrays: Mapping[str, Array]) -> tuple[TensorMessage, ...]:
        """Returns the records of arrays that are small.

        Raises:
            NoRoomError: the arena is full.
        """
        records: list[TensorMessage] = []
        for name, array in arrays.items():
            datatype = DATATYPE_NAMES.get(array.dtype) or datatype_of(array)
            if datatype == "BYTES":
                data = encode_bytes_elements(array)
                record = TensorMessage(name, datatype, array.shape, data)
                if len(data) > INSIDE_BYTES:
                    block = self._take(len(data), records)
                    self._memory.own[block : block + len(data)] = data
                    record = TensorMessage(name, datatype, array.shape, b"", block, len(data))
            elif (inside := records_inside({name: array})) is not None:
                (record,) = inside
            else:
                block = self._take(array.nbytes, records)
                copy: Array = np.ndarray(array.shape, array.dtype, self._memory.own, block)
                np.copyto(copy, array)
                record = TensorMessage(name, datatype, array.shape, b"", block, array.nbytes)
            records.append(record)
        return tuple(records)

    def records_in_steps(
        self, arrays: Mapping[str, Array]
    ) -> Generator[None, None, tuple[TensorMessage, ...]]:
        """Does the same for arrays of any size; yields between steps.

        If it is closed between them, its blocks are free.

        Raises:
            NoRoomError: the arena is full.
        """
        records: list[TensorMessage] = []
        try:
            for name, array in arrays.items():
                datatype = DATATYPE_NAMES.get(array.dtype) or datatype_of(array)
                pieces: list[bytes | memoryview] = []
                if datatype == "BYTES":
                    for texts in bytes_elements_in_pieces(array):
                        pieces.append(texts)
                        yield
                elif array.size:
                    pieces.append(raw_view(datatype, array))
                size = sum(map(len, pieces))
                block = self._take(size, records)
                records.append(TensorMessage(name, datatype, array.shape, b"", block, size))
                at = block
                for piece in pieces:
                    for start in range(0, len(piece), AT_ONCE_BYTES):
                        part = memoryview(piece)[start : start + AT_ONCE_BYTES]
                        self._memory.own[at : at + len(part)] = part
                        at += len(part)
                        yield
        except BaseException:
            self.free([record.block for record in records])
            raise
        return tuple(records)

    def record_of_bytes(self, data: bytes) -> TensorMessage:
        """Returns the record of bytes that are no tensor.

        Raises:
            NoRoomError: the arena is full.
        """
        (record,) = self.records({"": np.frombuffer(data, np.uint8)})
        return record

    def _take(self, nbytes: int, so_far: list[TensorMessage]) -> int:
        """Takes a block; without room for it, drops what the message has so far."""
        block = self._arena.take(nbytes)
        if block is None:
            used = self._arena.used_bytes
            self.free([record.block for record in so_far if record.block >= 0])
            so_far.clear()
            raise NoRoomError(nbytes + used - self._arena.used_bytes)
        self._highest = max(self._highest, block + nbytes)
        return block

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that are taken."""
        return self._arena.used_bytes

    def fits(self, nbytes: int) -> bool:
        """Returns True if an empty arena would hold so many bytes."""
        return nbytes <= self._arena.size

    def free(self, blocks: Sequence[int]) -> None:
        """Frees blocks that nobody views any more."""
        for block in blocks:
            self._arena.give(block)
        if not self._arena.used_bytes:
            if self._highest > KEPT_BYTES:
                self._memory.forget_own(KEPT_BYTES)
            self._highest = 0


class TensorReader:
    """The receiver's end.

    Args:
        memory: of the link.
        freed: callback, called in any thread when a block has been freed.
    """

    def __init__(self, memory: LinkMemory, freed: Callable[[], None]) -> None:
        self._arena = memory.others
        self._freed = freed
        self._views: dict[int, weakref.KeyedRef[int, Array]] = {}
        """By block, the array that views it."""
        self._free: deque[int] = deque()

    def close(self) -> None:
        """Ends the calls of `freed`: there is nobody to tell."""
        self._freed = lambda: None

    def arrays(self, records: Sequence[TensorMessage]) -> dict[str, Array]:
        """Returns arrays: those in the arena as views, which keep their block, texts as copies."""
        found: dict[str, Array] = {}
        for record in records:
            if record.datatype == "BYTES":
                steps = self._texts(record)
                while True:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found[record.name] = end.value
                        break
            else:
                found |= arrays_inside([record]) or {record.name: self._view(record)}
        return found

    def arrays_in_steps(
        self, records: Sequence[TensorMessage]
    ) -> Generator[None, None, dict[str, Array]]:
        """Does the same; yields between steps."""
        found: dict[str, Array] = {}
        for record in records:
            if record.datatype == "BYTES":
                found[record.name] = yield from self._texts(record)
            else:
                found |= self.arrays([record])
        return found

    def _texts(self, record: TensorMessage) -> Generator[None, None, Array]:
        data: bytes | memoryview = record.data
        if record.block >= 0:
            data = self._arena[record.block : record.block + record.size]
        count = math.prod(record.shape)
        elements = yield from bytes_elements_in_slices(data, count)
        if record.block >= 0:
            self._free.append(record.block)
            self._freed()
        return elements.reshape(record.shape)

    def _view(self, record: TensorMessage) -> Array:
        dtype = DATATYPES[record.datatype]
        array: Array = np.ndarray(record.shape, dtype, self._arena, record.block)
        self._views[record.block] = weakref.KeyedRef(array, self._unviewed, record.block)
        return array

    def _unviewed(self, gone: "weakref.KeyedRef[int, Array]") -> None:
        """Frees a block; in the thread that dropped the last view."""
        del self._views[gone.key]
        self._free.append(gone.key)
        self._freed()

    def skip(self, records: Sequence[TensorMessage]) -> None:
        """Frees the blocks of records that nobody reads."""
        self._free += [record.block for record in records if record.block >= 0]
        self._freed()

    def take_free(self) -> list[int]:
        """Returns the blocks that were freed since the last call."""
        free = self._free
        return [free.popleft() for _ in range(len(free))]


def is_in_one_step(records: Sequence[TensorMessage]) -> bool:
    """Returns True if `arrays` of these records takes less than a millisecond."""
    return not any(
        record.datatype == "BYTES"
        and (record.size > AT_ONCE_BYTES or math.prod(record.shape) > INLINE_TEXTS)
        for record in records
    )
