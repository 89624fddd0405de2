"""Counts of several processes in one page of shared memory: each writes its own, and reads all."""

import mmap
import os

_WORDS_APART = 8
"""A cache line; so a page has 64 counts."""


def make_counts() -> int:
    """Makes the page. Returns its descriptor."""
    descriptor = os.memfd_create("flambeau-counts", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor


class SharedCounts:
    """The counts.

    Args:
        descriptor: of the page; not needed any more afterwards.
        slots: number of processes.
    """

    def __init__(self, descriptor: int, slots: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("Q")[
            : slots * _WORDS_APART : _WORDS_APART
        ]

    def set(self, slot: int, count: int) -> int:
        """Writes the count of a slot. Returns the sum of the others."""
        self._words[slot] = count
        return sum(self._words) - count
