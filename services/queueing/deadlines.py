"""The deadlines of all requests that wait: one timer for all of them instead of one each.

In: things with a deadline. Out: those whose deadline passed, at most one tick late.

Deadlines are sorted into ticks; a set a tick, so that forgetting an answered request costs no
search. One `call_at` is armed, for the earliest tick that is not empty.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

TICK_S = 0.002

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """What waits until when.

    Args:
        expire: called on the event loop with each item whose deadline passed; it is forgotten
            before the call.
    """

    def __init__(self, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._ticks: dict[int, set[T]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0
        """The tick the timer is set for, while there is one."""

    def add(self, item: T, deadline: float) -> int:
        """Watches an item until `deadline`, a `time.monotonic()` second.

        Returns:
            The tick, which `remove` wants back.
        """
        tick = int(deadline / TICK_S) + 1
        items = self._ticks.get(tick)
        if items is None:
            self._ticks[tick] = {item}
            if not self._armed_by(tick):
                self._arm(tick)
        else:
            items.add(item)
        return tick

    def remove(self, item: T, tick: int) -> None:
        """Forgets an item; one that is not there changes nothing."""
        items = self._ticks.get(tick)
        if items is not None:
            items.discard(item)
            if not items:
                del self._ticks[tick]

    def __iter__(self) -> Iterator[T]:
        for items in list(self._ticks.values()):
            yield from list(items)

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
                self._expire(item)
        # What expired may have brought something new, and armed the timer for it.
        earliest = min(self._ticks, default=self._armed)
        if earliest in self._ticks and not self._armed_by(earliest):
            self._arm(earliest)

    def _armed_by(self, tick: int) -> bool:
        """Whether the timer will fire when a tick is due."""
        return self._timer is not None and self._armed <= tick
