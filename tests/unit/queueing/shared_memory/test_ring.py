"""The ring against a model of it: whatever is put and taken, in whatever order."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.queueing.shared_memory.ring import WORDS, RingError, RingReader, RingWriter

SIZE = 256
LARGEST = SIZE // 4 - 8


def ring(size: int = SIZE) -> tuple[RingWriter, RingReader, memoryview]:
    state = memoryview(bytearray(8 * WORDS)).cast("Q")
    data = memoryview(bytearray(size))
    return RingWriter(state, data), RingReader(state, data), state


@given(st.integers(0, 2**32))
def test_frames_come_out_as_they_went_in(seed: int) -> None:
    """Long runs, with the ring near empty or near full for a while each."""
    writer, reader, _ = ring()
    chosen = random.Random(seed)
    inside: deque[bytes] = deque()
    for step in range(400):
        if chosen.random() < (0.3, 0.7)[step // 50 % 2]:
            assert reader.take() == (inside.popleft() if inside else None)
            continue
        frame = chosen.randbytes(chosen.randint(0, LARGEST))
        if writer.put(frame):
            inside.append(frame)
        else:
            assert inside, "an empty ring takes any frame"
    while inside:
        assert reader.take() == inside.popleft()
    assert reader.take() is None


@given(st.binary(max_size=LARGEST), st.integers(0, 2 * SIZE // 8))
def test_empty_ring_takes_a_frame_at_any_position(frame: bytes, before: int) -> None:
    writer, reader, _ = ring()
    for _ in range(before):
        assert writer.put(b"")
        assert reader.take() == b""
    assert writer.put(frame)
    assert reader.take() == frame


def test_reader_that_sleeps_is_woken_once() -> None:
    writer, reader, _ = ring()
    assert reader.sleep()
    assert writer.put(b"one")
    assert writer.must_wake()
    assert writer.put(b"two")
    assert not writer.must_wake()
    assert not reader.sleep(), "there are frames"
    assert [reader.take(), reader.take()] == [b"one", b"two"]
    assert reader.sleep()


def test_writer_that_waits_for_room_is_woken_once() -> None:
    writer, reader, _ = ring()
    while writer.put(b"x" * LARGEST):
        pass
    assert reader.take() is not None
    assert reader.must_wake()
    assert reader.take() is not None
    assert not reader.must_wake()
    assert writer.put(b"x" * LARGEST)


def test_another_process_goes_on_where_the_ring_is() -> None:
    """Both ends are made anew of the same memory."""
    state = memoryview(bytearray(8 * WORDS)).cast("Q")
    data = memoryview(bytearray(SIZE))
    assert RingWriter(state, data).put(b"one")
    assert RingWriter(state, data).put(b"two")
    assert RingReader(state, data).take() == b"one"
    assert RingReader(state, data).take() == b"two"


@pytest.mark.parametrize("length", [SIZE, 2**40])
def test_impossible_length_is_an_error(length: int) -> None:
    state = memoryview(bytearray(8 * WORDS)).cast("Q")
    data = memoryview(bytearray(SIZE))
    assert RingWriter(state, data).put(b"one")
    data.cast("Q")[0] = length
    with pytest.raises(RingError):
        RingReader(state, data).take()
