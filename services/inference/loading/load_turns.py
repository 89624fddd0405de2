"""Which versions load at the same time, and what of the memory that is taken is whose.

In: versions that want to load, by the size of their files. Out: turns. Pure but for waiting.

What a version takes is measured as the growth of the whole process while it loads. So one loads
alone where memory is short, or every figure would count; where it is ample, as many load side by
side as there are cores, and what the process grew by is divided in proportion to their files.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from services.queueing.records import Lane

AMPLE = 20
"""Versions load side by side while there is room for so many times the files of them all: what a
runtime makes of a file seldom takes more than four times as much."""


@dataclass(slots=True, eq=False)
class Load:
    """One version that loads."""

    lane: Lane
    file_bytes: int
    together_bytes: int = 0
    """Of the files of all that loaded at any time while this one did, itself included."""

    @property
    def share(self) -> float:
        """Of what the process grew by meanwhile, the part that is this version's."""
        return self.file_bytes / self.together_bytes if self.together_bytes else 1.0


class LoadTurns:
    """Hands out the turns.

    Args:
        most: versions that may load at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._loading: set[Load] = set()
        self._changed = asyncio.Condition()

    @property
    def is_quiet(self) -> bool:
        """Whether at most one version loads, so that what is in use can be told apart."""
        return len(self._loading) <= 1

    @contextlib.asynccontextmanager
    async def turn(
        self, lane: Lane, file_bytes: int, room_bytes: Callable[[], int]
    ) -> AsyncIterator[Load]:
        """Waits for a turn, which lasts as long as the block.

        Args:
            lane: that loads.
            file_bytes: the size of its files.
            room_bytes: says what memory is free; 0 if nobody knows, and then it loads alone.
        """
        load = Load(lane, max(file_bytes, 1))
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_begin(load, room_bytes))
            self._loading.add(load)
            together = sum(other.file_bytes for other in self._loading)
            for other in self._loading - {load}:
                other.together_bytes += load.file_bytes
            load.together_bytes = together
        try:
            yield load
        finally:
            async with self._changed:
                self._loading.discard(load)
                self._changed.notify_all()

    def _may_begin(self, load: Load, room_bytes: Callable[[], int]) -> bool:
        if not self._loading:
            return True
        if load.lane.artifact:
            return False
        needed = sum(not other.lane.artifact for other in self._loading)
        need_bytes = load.file_bytes + sum(other.file_bytes for other in self._loading)
        return needed < self._most and AMPLE * need_bytes <= room_bytes()
