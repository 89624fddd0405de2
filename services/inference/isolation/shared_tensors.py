"""Tensors in shared memory: one process writes them, the other views them, none is sent.

One side has a `TensorWriter`, the other a `TensorReader`. Each tensor name has its own place,
an anonymous file in memory (memfd_create(2)) that both processes map. A place that is too small
is replaced by one of at least twice its size, which a `memory` message announces. After that, only
a tensor's name, type and shape are sent with each batch.

Strings do not lie in an array: their lengths do, as 32-bit numbers, and their bytes behind these.

Rule: the next batch overwrites a place, so a reader copies what it keeps.
"""

import fcntl
import math
import mmap
import operator
import os
import struct
from itertools import accumulate, pairwise

import numpy as np

from flambeau.protocol.tensors import Array, as_bytes, object_array
from services.inference.isolation.channel import Channel, ChannelClosedError

TensorEntry = tuple[str, str, tuple[int, ...]]
"""Name, type as in `numpy.dtype.str`, and shape; for strings the number of bytes and the shape."""

MAX_PLACES = 1024
"""Tensors of one process: each holds a descriptor, of which a server has some thousands."""
MAX_PLACE_BYTES = 2**32
"""Memory of one tensor."""
SMALL_BYTES = 128 * 1024
SMALL_ELEMENTS = 256
"""Size of a tensor, and number of its strings, that the event loop copies: 0.1 ms at most."""
_STRINGS = np.dtype(np.object_).str
_LENGTH_BYTES = 4
MAX_STRINGS = 2**24
"""Strings of a tensor that are read: as many objects take a GiB."""
PIECE = 4096
"""Strings whose lengths and octets are handled by one call of C, which keeps the interpreter lock:
some 0.2 ms."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals of a place (fcntl(2)): reading memory that the other process has cut off is a SIGBUS."""


class TensorWriter:
    """Writes tensors to memory that the other process maps."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._places: dict[str, mmap.mmap] = {}
        self._handed_out: dict[str, Array] = {}

    def place(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], *, flags: int = 0
    ) -> Array:
        """Returns shared memory for a tensor, contents undefined; for strings private memory.

        Args:
            name: of the tensor.
            shape: of the tensor.
            dtype: type of its elements.
            flags: of the message that announces new memory; see `Channel.send`.
        """
        if dtype.hasobject:
            return np.empty(shape, dtype)
        count = math.prod(shape)
        place = self._places.get(name)
        if place is None or len(place) < count * dtype.itemsize:
            place = self._replace(name, count * dtype.itemsize, flags)
        array = np.frombuffer(place, dtype, count).reshape(shape)
        self._handed_out[name] = array
        return array

    def write(self, name: str, array: Array, *, flags: int = 0) -> TensorEntry:
        """Copies a tensor to its place, unless it is the array that `place` returned.

        Raises:
            ChannelClosedError: the channel is closed, so that the place is another process's: this
                one is a fork.
        """
        if self._channel.is_closed:
            raise ChannelClosedError
        if array.dtype.hasobject:
            octets = np.frombuffer(_joined(array), np.uint8)
            np.copyto(self.place(name, octets.shape, octets.dtype, flags=flags), octets)
            return name, _STRINGS, (octets.size, *array.shape)
        if array is not self._handed_out.get(name):
            np.copyto(self.place(name, array.shape, array.dtype, flags=flags), array)
        return name, array.dtype.str, array.shape

    def _replace(self, name: str, size_bytes: int, flags: int) -> mmap.mmap:
        capacity_bytes = max(mmap.PAGESIZE, 1 << (size_bytes - 1).bit_length())
        descriptor = os.memfd_create("flambeau-tensor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, capacity_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            place = mmap.mmap(descriptor, capacity_bytes)
            self._channel.send("memory", name, descriptor, flags=flags)
        finally:
            os.close(descriptor)
        self._places[name] = place
        return place


class TensorReader:
    """Views tensors that the other process wrote."""

    def __init__(self) -> None:
        self._places: dict[str, mmap.mmap] = {}

    def attach(self, name: str, descriptor: int) -> None:
        """Maps a place that a `memory` message announced, and closes its descriptor.

        Raises:
            OSError: it is no memory.
            ValueError: it can be cut off, is too large, or there are too many.
        """
        try:
            if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("the memory of a tensor is not sealed")
            if (size := os.fstat(descriptor).st_size) > MAX_PLACE_BYTES:
                raise ValueError(f"a tensor has {size:,} bytes; at most {MAX_PLACE_BYTES:,} fit")
            if len(self._places) >= MAX_PLACES and name not in self._places:
                raise ValueError(f"there are over {MAX_PLACES:,} tensors")
            self._places[name] = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    def is_small(self, entry: TensorEntry) -> bool:
        """Returns True if copying a tensor takes some microseconds.

        Raises:
            ValueError, TypeError: the entry describes none.
        """
        _, dtype, shape = entry
        if dtype == _STRINGS:
            size_bytes, *rest = shape
            return bool(size_bytes <= SMALL_BYTES and math.prod(rest) <= SMALL_ELEMENTS)
        return bool(math.prod(shape) * np.dtype(dtype).itemsize <= SMALL_BYTES)

    def view(self, entry: TensorEntry) -> Array:
        """Returns a view of a tensor, which the next batch overwrites; for strings a copy.

        Raises:
            KeyError, ValueError, TypeError: the entry does not describe what lies there.
        """
        name, dtype, shape = entry
        if min(shape, default=0) < 0:  # NumPy takes -1 for all that there is
            raise ValueError(f"a tensor has the shape {shape}")
        if dtype == _STRINGS:
            size_bytes, *rest = shape
            octets = np.frombuffer(self._places[name], np.uint8, size_bytes)
            return _split(octets.tobytes(), math.prod(rest)).reshape(rest)
        return np.frombuffer(self._places[name], dtype, math.prod(shape)).reshape(shape)


def _joined(array: Array) -> bytes:
    """Returns the lengths of an array's strings, and the strings.

    Raises:
        TensorError: an element is neither bytes nor text.
    """
    elements = array.ravel().tolist()
    lengths, octets = [], []
    for start in range(0, len(elements), PIECE):
        piece = elements[start : start + PIECE]
        strings = [one if type(one) is bytes else as_bytes(one) for one in piece]
        lengths.append(struct.pack(f"<{len(strings)}I", *map(len, strings)))
        octets.append(b"".join(strings))
    return b"".join((*lengths, *octets))


def _split(octets: bytes, count: int) -> Array:
    """Returns the strings that `_joined` has joined, as a flat array.

    Raises:
        ValueError, TypeError: they are not `count` strings.
    """
    if operator.index(count) > MAX_STRINGS:
        raise ValueError(f"there are {count:,} strings; at most {MAX_STRINGS:,} are read")
    start = count * _LENGTH_BYTES
    if start > len(octets):
        raise ValueError(f"{len(octets)} bytes are too few for {count:,} strings")
    lengths = np.frombuffer(octets, "<u4", count)
    if start + int(lengths.sum(dtype=np.uint64)) != len(octets):
        raise ValueError(f"{count:,} strings do not fill {len(octets):,} bytes")
    strings: list[bytes] = []
    for first in range(0, count, PIECE):
        ends = [*accumulate(lengths[first : first + PIECE].tolist(), initial=start)]
        strings += [octets[begin:end] for begin, end in pairwise(ends)]
        start = ends[-1]
    return object_array(strings)
