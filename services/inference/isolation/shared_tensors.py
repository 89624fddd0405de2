"""Tensors in memory that two processes share: written by one, viewed by the other, never sent.

One side has a `TensorWriter`, the other a `TensorReader`. Each tensor name has a place of its
own, an anonymous file in memory (memfd_create(2)) which both map. A place that is too small is
replaced by one of twice the size or more, announced by a `memory` message; then only a tensor's
name, type and shape travel with each batch.

Strings do not lie in an array: theirs is encoded as the protocol has it, each behind its length.

Rule kept here: a place is rewritten by the next batch, so a reader copies what it keeps.
"""

import math
import mmap
import os

import numpy as np

from model_store.tensors import Array, decode_bytes_elements, encode_bytes_elements
from services.inference.isolation.channel import Channel

TensorEntry = tuple[str, str, tuple[int, ...]]
"""Name, type as `numpy.dtype.str` has it, and shape; for strings behind the number of bytes."""

_STRINGS = np.dtype(np.object_).str


class TensorWriter:
    """Puts tensors where the other process sees them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._places: dict[str, mmap.mmap] = {}
        self._handed_out: dict[str, Array] = {}

    def place(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Shared memory for a tensor, undefined contents; strings get memory of their own."""
        if dtype.hasobject:
            return np.empty(shape, dtype)
        count = math.prod(shape)
        place = self._places.get(name)
        if place is None or len(place) < count * dtype.itemsize:
            place = self._replace(name, count * dtype.itemsize)
        array = np.frombuffer(place, dtype, count).reshape(shape)
        self._handed_out[name] = array
        return array

    def write(self, name: str, array: Array) -> TensorEntry:
        """Makes sure a tensor lies in its place; the one that `place` gave is not copied."""
        if array.dtype.hasobject:
            octets = np.frombuffer(encode_bytes_elements(array), np.uint8)
            np.copyto(self.place(name, octets.shape, octets.dtype), octets)
            return name, _STRINGS, (octets.size, *array.shape)
        if array is not self._handed_out.get(name):
            np.copyto(self.place(name, array.shape, array.dtype), array)
        return name, array.dtype.str, array.shape

    def _replace(self, name: str, size_bytes: int) -> mmap.mmap:
        capacity_bytes = max(mmap.PAGESIZE, 1 << (size_bytes - 1).bit_length())
        descriptor = os.memfd_create("flambeau-tensor")
        try:
            os.ftruncate(descriptor, capacity_bytes)
            place = mmap.mmap(descriptor, capacity_bytes)
            self._channel.send("memory", name, descriptor)
        finally:
            os.close(descriptor)
        self._places[name] = place
        return place


class TensorReader:
    """Views what the other process has put there."""

    def __init__(self) -> None:
        self._places: dict[str, mmap.mmap] = {}

    def attach(self, name: str, descriptor: int) -> None:
        """Takes the place that a `memory` message announced, and its descriptor."""
        try:
            self._places[name] = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)

    def view(self, entry: TensorEntry) -> Array:
        """A tensor where it lies; the next batch overwrites it."""
        name, dtype, shape = entry
        if dtype == _STRINGS:
            size_bytes, *rest = shape
            octets = np.frombuffer(self._places[name], np.uint8, size_bytes)
            return decode_bytes_elements(octets.tobytes(), math.prod(rest)).reshape(rest)
        return np.frombuffer(self._places[name], dtype, math.prod(shape)).reshape(shape)
