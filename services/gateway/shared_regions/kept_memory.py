"""Memory for large inputs, kept for the next ones: to fill new pages takes five times as long.

In: sizes. Out: views of anonymous memory, which comes back by itself once no array refers to it.

Rules:
- a view has bytes of an earlier one; whoever takes it fills it before anyone else sees it;
- memory is given out again only when its last view and array are gone, in whatever thread;
- at most `most_bytes` are kept, and none for longer than `KEEP_S` after its last use. They are
  returned to the system by a thread: 48 MiB take 3 to 6 ms.
"""

import asyncio
import itertools
import mmap
import operator
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST_KEPT_BYTES = 64 * 2**20
KEEP_S = 5.0
_GRAIN_BYTES = 256 * 1024
"""Sizes are rounded up to a multiple, so that memory also fits slightly larger inputs."""
_FIT = 4
"""Memory is at most so many times as large as the input that it is used for."""


class _Free(NamedTuple):
    mapping: mmap.mmap
    since: float


class KeptMemory:
    """The kept memory of one event loop.

    Args:
        most_bytes: most bytes that are kept while nothing uses them.
        clock: monotonic time in seconds.
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._free: list[_Free] = []
        self._lent: dict[int, tuple[weakref.ref[npt.NDArray[np.uint8]], mmap.mmap]] = {}
        """By the address of the reference: an array has no hash, so neither has the reference."""
        # Filled by any thread, at any allocation of this one: the last reference goes anywhere.
        self._returned: deque[_Free] = deque()
        self._is_watched = False

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept and not in use."""
        self._collect()
        return sum(len(one.mapping) for one in self._free)

    def take(self, size: int) -> memoryview:
        """Returns memory of `size` bytes, whose content is arbitrary."""
        self._collect()
        most = max(_FIT * size, _GRAIN_BYTES)
        fits = [one for one in self._free if size <= len(one.mapping) <= most]
        if fits:
            found = min(fits, key=lambda one: len(one.mapping))
            self._free.remove(found)
            mapping = found.mapping
        else:
            rounded = -(-size // _GRAIN_BYTES) * _GRAIN_BYTES
            # NumPy would ask for large pages, each of which may take the event loop 5 ms.
            mapping = mmap.mmap(-1, rounded, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = np.frombuffer(mapping, np.uint8)
        reference = weakref.ref(whole, self._give_back)
        self._lent[id(reference)] = reference, mapping
        self._watch()
        return whole.data[:size]

    def _give_back(self, ended: "weakref.ref[npt.NDArray[np.uint8]]") -> None:
        self._returned.append(_Free(self._lent.pop(id(ended))[1], self._clock()))

    def _collect(self) -> None:
        """Keeps what came back, the latest first, and forgets the oldest beyond the limit."""
        while self._returned:
            self._free.insert(0, self._returned.popleft())
        sizes = itertools.accumulate(len(one.mapping) for one in self._free)
        fits = [size <= self._most_bytes for size in sizes]
        if not all(fits):
            dropped = [*itertools.compress(self._free, map(operator.not_, fits))]
            self._free = [*itertools.compress(self._free, fits)]
            _return_to_system(dropped)

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().call_later(KEEP_S, self.expire)

    def expire(self) -> None:
        """Returns what was not used for `KEEP_S` to the system."""
        self._is_watched = False
        self._collect()
        until = self._clock() - KEEP_S
        expired = [one for one in self._free if one.since <= until]
        self._free = [one for one in self._free if one.since > until]
        if expired:
            _return_to_system(expired)
        if self._free or self._lent or self._returned:
            self._watch()


def _return_to_system(ended: list[_Free]) -> None:
    """Has a thread drop the last references to memory."""
    asyncio.get_running_loop().run_in_executor(None, ended.clear)
