"""Memory of the arenas: only as much as is used, but for a little."""

import os

import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from services.queueing.shared_memory.link_memory import LinkMemory, make_memory
from services.queueing.shared_memory.messages import TensorMessage
from services.queueing.shared_memory.tensor_blocks import (
    KEPT_BYTES,
    NoRoomError,
    TensorReader,
    TensorWriter,
)

MIB = 2**20


@pytest.fixture
def descriptor() -> int:
    return make_memory(64 * MIB)


def placed(writer: TensorWriter, *arrays: Array) -> tuple[TensorMessage, ...]:
    """Places arrays of any size."""
    steps = writer.records_in_steps({str(n): array for n, array in enumerate(arrays)})
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def used_bytes(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_large_arena_gives_its_memory_back_when_it_is_empty(descriptor: int) -> None:
    edge, model = (LinkMemory(descriptor, is_edge=is_edge) for is_edge in (True, False))
    writer, reader = TensorWriter(edge), TensorReader(model, lambda: None)
    arrays = [np.full(10 * MIB, n, np.uint8) for n in (1, 2, 3, 4)]
    records = placed(writer, *arrays)
    seen = reader.arrays(records)
    assert used_bytes(descriptor) >= 40 * MIB
    for array, name in zip(arrays, sorted(seen), strict=True):
        assert np.array_equal(seen.pop(name), array)
    writer.free(reader.take_free())
    assert used_bytes(descriptor) < KEPT_BYTES + MIB
    (again,) = placed(writer, arrays[3])
    assert np.array_equal(reader.arrays([again])["0"], arrays[3])


def test_blocks_of_what_has_no_room_are_free_again(descriptor: int) -> None:
    writer = TensorWriter(LinkMemory(descriptor, is_edge=True))
    for _ in range(3):
        with pytest.raises(NoRoomError):
            placed(writer, np.zeros(40 * MIB, np.uint8), np.zeros(40 * MIB, np.uint8))
    half_done = writer.records_in_steps({"x": np.zeros(60 * MIB, np.uint8)})
    next(half_done)
    half_done.close()
    assert placed(writer, np.zeros(64 * MIB, np.uint8))


def test_arenas_of_the_ends_are_apart(descriptor: int) -> None:
    ends = [LinkMemory(descriptor, is_edge=is_edge) for is_edge in (True, False)]
    writers = [TensorWriter(end) for end in ends]
    readers = [TensorReader(end, lambda: None) for end in reversed(ends)]
    arrays = [np.full(64 * MIB, n, np.uint8) for n in (1, 2)]
    records = [placed(writer, array)[0] for writer, array in zip(writers, arrays, strict=True)]
    for reader, record, array in zip(readers, records, arrays, strict=True):
        assert np.array_equal(reader.arrays([record])["0"], array)
