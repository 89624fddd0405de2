"""Deadlines of all waiting requests: one shared timer instead of one each.

In: items with a deadline. Out: those whose deadline passed, at most one tick late.

Most requests are answered long before their deadline, so most are only in a set of unsorted ones,
which costs a fifth of sorting them. Periodically, those that still wait are sorted into ticks, a
set a tick, so that removing an answered request costs no search; those with little time left are
sorted at once. One timer is armed, for the earliest tick.

An answered request is removed at once: kept until the next scan, those of 50 ms and their tensors
held memory that malloc would have used for the next ones (1 MB: 0.4 ms of page faults each).
"""

import asyncio
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

TICK_S = 0.002
SORT_EVERY_S = 0.05
"""Longest time that a deadline stays unsorted."""
SORTED_AT_ONCE_S = 2.5 * SORT_EVERY_S
"""A deadline nearer than this is sorted at once."""


class Waiting(Protocol):
    """An item with a deadline.

    Attributes:
        tick: 0 until its deadline is sorted; belongs to `Deadlines`.
    """

    tick: int

    @property
    def deadline(self) -> float:
        """A `time.monotonic()` second."""

    def expire(self) -> None:
        """Called on the event loop when the deadline has passed, after its removal."""


T = TypeVar("T", bound=Waiting)


class Deadlines(Generic[T]):
    """Watches the deadlines of items."""

    def __init__(self) -> None:
        self._unsorted: set[T] = set()
        self._ticks: dict[int, set[T]] = {}
        self._look: asyncio.TimerHandle | None = None
        """Set while any item is unsorted."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0
        """The tick that the timer is set for, while one is armed."""

    def add(self, item: T, left_s: float) -> None:
        """Watches an item until its deadline, which is `left_s` away."""
        if left_s > SORTED_AT_ONCE_S:
            self._unsorted.add(item)
            if self._look is None:
                loop = asyncio.get_running_loop()
                self._look = loop.call_at(loop.time() + SORT_EVERY_S, self._sort_all)
        else:
            self._sort(item)

    def remove(self, item: T) -> None:
        """Removes an item; a missing one changes nothing."""
        if not item.tick:
            self._unsorted.discard(item)
            return
        items = self._ticks.get(item.tick)
        if items is not None:
            items.discard(item)
            if not items:
                del self._ticks[item.tick]

    def __iter__(self) -> Iterator[T]:
        yield from list(self._unsorted)
        for items in list(self._ticks.values()):
            yield from list(items)

    def _sort_all(self) -> None:
        self._look = None
        items, self._unsorted = self._unsorted, set()
        for item in items:
            self._sort(item)

    def _sort(self, item: T) -> None:
        tick = item.tick = int(item.deadline / TICK_S) + 1
        items = self._ticks.get(tick)
        if items is None:
            self._ticks[tick] = {item}
            if not self._armed_by(tick):
                self._arm(tick)
        else:
            items.add(item)

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._armed = tick
        self._timer = loop.call_at(tick * TICK_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # A loop that rounds its clock may fire a little before the tick.
        due = max(int(asyncio.get_running_loop().time() / TICK_S), self._armed)
        for tick in sorted([tick for tick in self._ticks if tick <= due]):
            for item in self._ticks.pop(tick, ()):
                item.expire()
        # What expired may have brought something new, and armed the timer for it.
        earliest = min(self._ticks, default=self._armed)
        if earliest in self._ticks and not self._armed_by(earliest):
            self._arm(earliest)

    def _armed_by(self, tick: int) -> bool:
        """Returns True if the timer will fire when a tick is due."""
        return self._timer is not None and self._armed <= tick
