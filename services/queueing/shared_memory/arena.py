"""Allocates blocks of an arena of shared memory: one process does, and is told which are free.

In: sizes, and blocks that nobody views any more. Out: offsets. Pure: it touches no memory.
"""

from bisect import bisect_left, insort

ALIGNED_TO = 64
"""A cache line: arrays begin where the runtimes like them to."""


class Arena:
    """The blocks of one arena: each block goes to the first gap that holds it.

    Args:
        size: bytes of the arena.

    Attributes:
        used_bytes: bytes of the blocks that are taken.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used_bytes = 0
        self._taken: dict[int, int] = {}
        """Sizes of the blocks, by their offset."""
        self._gaps: list[tuple[int, int]] = [(0, size)]
        """Start and end of each gap, in order; no two touch."""

    def take(self, nbytes: int) -> int | None:
        """Returns the offset of a new block; None if no gap holds it."""
        needed = max(ALIGNED_TO, nbytes + -nbytes % ALIGNED_TO)
        gaps = self._gaps
        for place, (start, end) in enumerate(gaps):
            if end - start >= needed:
                if end - start == needed:
                    del gaps[place]
                else:
                    gaps[place] = start + needed, end
                self._taken[start] = needed
                self.used_bytes += needed
                return start
        return None

    def give(self, offset: int) -> None:
        """Frees the block of an offset.

        Raises:
            KeyError: no block begins there.
        """
        size = self._taken.pop(offset)
        self.used_bytes -= size
        start, end = offset, offset + size
        gaps = self._gaps
        place = bisect_left(gaps, (start, start))
        if place < len(gaps) and gaps[place][0] == end:
            end = gaps.pop(place)[1]
        if place and gaps[place - 1][1] == start:
            start = gaps.pop(place - 1)[0]
        insort(gaps, (start, end))
