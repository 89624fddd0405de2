"""Tensors and messages between two ends of a channel, both in this process."""

import fcntl
import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flambeau.protocol.tensors import DATATYPES, Array, object_array
from services.inference.isolation.channel import MAX_MESSAGE_BYTES, Channel, ChannelClosedError
from services.inference.isolation.shared_tensors import (
    MAX_PLACE_BYTES,
    MAX_STRINGS,
    PIECE,
    TensorReader,
    TensorWriter,
)

DTYPES = sorted({dtype.str for dtype in DATATYPES.values() if dtype.kind != "O"})


class Pair:
    """A writer and a reader; `move` takes an array from one to the other."""

    def __init__(self) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.near, self.far = (Channel(end) for end in ends)
        self.writer, self.reader = TensorWriter(self.near), TensorReader()
        self.places = 0

    def move(self, name: str, array: Array) -> Array:
        self.near.send("run", [self.writer.write(name, array)])
        while True:
            kind, content, descriptor = self.far.receive()
            if kind == "run":
                return self.reader.view(content[0])
            assert kind == "memory"
            assert descriptor is not None
            self.reader.attach(content, descriptor)
            self.places += 1


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.near.close()
    pair.far.close()


@given(st.data())
def test_any_array_arrives_as_it_was(pair: Pair, data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shapes = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=20)
    array = data.draw(arrays.arrays(dtype, shapes))
    name = data.draw(st.sampled_from("ab"))
    found = pair.move(name, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def test_a_placed_array_is_shared_and_not_copied(pair: Pair) -> None:
    placed = pair.writer.place("shared", (2, 3), np.dtype(np.float32))
    placed[:] = 1
    seen = pair.move("shared", placed)
    placed[:] = 2
    assert seen.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_a_place_grows_by_at_least_two(pair: Pair) -> None:
    """A model whose batches grow by one row announces few places."""
    before = pair.places
    for count in range(1, 65):
        array = np.full((count, 1024), count, np.float32)
        assert (pair.move("growing", array) == count).all()
    assert pair.places - before == 7  # 4 KiB, 8 KiB, ... 256 KiB


@given(st.lists(st.binary(max_size=20), max_size=9))
def test_strings_arrive_as_they_are(rows: list[bytes]) -> None:
    pair = Pair()
    for shape in ((len(rows),), (1, len(rows), 1)):
        array = object_array(rows).reshape(shape)
        found = pair.move("text", array)
        assert (found.shape, found.ravel().tolist()) == (shape, rows)
    assert pair.writer.place("text", (2,), np.dtype(object)).shape == (2,)
    pair.near.close()
    pair.far.close()


@pytest.mark.parametrize(
    ("size_bytes", "count", "error", "says"),
    [
        (11, 3, ValueError, "11 bytes are too few for 3 strings"),
        (13, 2, ValueError, "2 strings do not fill 13 bytes"),
        (15, 2, ValueError, "2 strings do not fill 15 bytes"),
        (14, 1, ValueError, "1 strings do not fill 14 bytes"),
        (14, 2.0, TypeError, "cannot be interpreted as an integer"),
        (2**20, 2, ValueError, "buffer is smaller than requested"),
        (14, MAX_STRINGS + 1, ValueError, "at most 16,777,216 are read"),
    ],
)
def test_strings_that_are_not_as_described_are_refused(
    pair: Pair, size_bytes: int, count: int, error: type[Exception], says: str
) -> None:
    rows = [b"one", b"two"]
    assert pair.move("rows", object_array(rows)).tolist() == rows
    strings = np.dtype(object).str
    assert pair.reader.view(("rows", strings, (14, 2))).tolist() == rows
    with pytest.raises(error, match=says):
        pair.reader.view(("rows", strings, (size_bytes, count)))


def test_many_strings_arrive_as_they_are(pair: Pair) -> None:
    rows = [b"x" * (number % 3) for number in range(2 * PIECE + 1)]
    assert pair.move("rows", object_array(rows)).tolist() == rows


def test_other_objects_are_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="a BYTES element is a list; give bytes or text"):
        pair.writer.write("x", np.array([[1], None], object))


def test_a_message_has_a_limit(pair: Pair) -> None:
    with pytest.raises(ValueError, match="the model has too many tensors to run isolated"):
        pair.near.send("run", ["x" * MAX_MESSAGE_BYTES])
    largest = "x" * (MAX_MESSAGE_BYTES - len('{"run":""}'))
    pair.near.send("run", largest)
    assert pair.far.receive() == ("run", largest, None)


def test_a_descriptor_travels_and_the_sender_keeps_its_own(pair: Pair) -> None:
    with open(os.memfd_create("test"), "w+b") as file:
        pair.near.send("open", "x", file.fileno())
        kind, content, descriptor = pair.far.receive()
        assert (kind, content) == ("open", "x")
        assert descriptor is not None
        assert os.fstat(descriptor).st_ino == os.fstat(file.fileno()).st_ino
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_a_channel_whose_other_end_is_gone_says_so() -> None:
    pair = Pair()
    pair.far.close()
    with pytest.raises(ChannelClosedError):
        pair.near.receive()
    with pytest.raises(ChannelClosedError):
        pair.near.send("run", [])
    pair.near.close()
    with pytest.raises(ChannelClosedError):
        pair.near.send("run", [])


def test_waiting_has_a_limit(pair: Pair) -> None:
    pair.far.wait_at_most(0.01)
    with pytest.raises(TimeoutError):
        pair.far.receive()
    pair.far.wait_at_most(None)


@pytest.mark.parametrize(
    ("seals", "size", "says"),
    [(0, 4096, "is not sealed"), (fcntl.F_SEAL_SHRINK, MAX_PLACE_BYTES + 1, "at most")],
)
def test_memory_that_may_harm_its_reader_is_refused(seals: int, size: int, says: str) -> None:
    memory = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(ValueError, match=says):
        TensorReader().attach("x", memory)
    with pytest.raises(OSError, match="Bad file descriptor"):  # it is closed all the same
        os.fstat(memory)
