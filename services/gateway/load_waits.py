"""Requests that wait for a load, until it is over or their deadlines come.

In: requests whose version is not loaded. Out: the same once it may be, or an error that says why
not.

Rules:
- a request waits until its deadline at most;
- requests whose load is over begin in several turns of the event loop;
- of those whose version made room for others (`ReturningWaits`), at most a share of the requests
  in flight wait; further ones are refused at once, and from half of it on those of a caller that
  has an equal share among several;
- a version that made room is asked for again every `ASKED_EVERY_S`, since a model process that
  ended has forgotten that it was.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from services.queueing.deadlines import Deadlines
from services.queueing.directory import Directory
from services.queueing.records import Lane

BEGUN_A_TURN = 8
"""Requests that begin in one turn of the event loop: each is decoded or admitted, 25 to 100 µs."""
ASKED_EVERY_S = 1.0

K = TypeVar("K", bound=Hashable)


class LoadWait(Generic[K]):
    """A request that waits.

    Args:
        waits: those of the process.
        key: names the load.
        deadline: `time.monotonic()` second.
        again: called once the load is over.
        late: called at its deadline.
        holder: the caller whose share it counts against; None for none.
    """

    __slots__ = ("_again", "_late", "_waits", "deadline", "holder", "is_over", "key", "tick")

    def __init__(
        self,
        waits: "LoadWaits[K]",
        key: K,
        deadline: float,
        again: Callable[[], None],
        late: Callable[[], None],
        holder: object,
    ) -> None:
        self._waits, self.key, self.deadline, self.holder = waits, key, deadline, holder
        self._again, self._late = again, late
        self.tick = 0
        self.is_over = False

    def begin(self) -> None:
        """Ends the wait: the load is over."""
        if not self.is_over:
            again = self._again
            self.cancel()
            again()

    def expire(self) -> None:
        """Ends the wait at the deadline."""
        if not self.is_over:
            late = self._late
            self.cancel()
            late()

    def cancel(self) -> None:
        """Ends the wait: the caller has gone, or its request is refused."""
        if not self.is_over:
            self.is_over = True
            self._again = self._late = _nothing  # they hold the request
            self._waits.remove(self)


class LoadWaits(Generic[K]):
    """Requests that wait for loads; a key names each load.

    Attributes:
        count: requests that wait.
        by_key: those of each load that is not over, in the order in which they came.
    """

    def __init__(self) -> None:
        self.count = 0
        self.by_key: dict[K, dict[LoadWait[K], None]] = {}
        self._deadlines: Deadlines[LoadWait[K]] = Deadlines()
        self._back: deque[LoadWait[K]] = deque()
        """Those whose load is over."""

    def add(
        self,
        key: K,
        deadline: float,
        again: Callable[[], None],
        late: Callable[[], None],
        holder: object = None,
    ) -> LoadWait[K] | None:
        """Has a request wait; returns None if there is no time for it.

        Args:
            key: names the load.
            deadline: `time.monotonic()` second.
            again: called once the load is over; not in this turn.
            late: called at the deadline.
            holder: the caller whose share it counts against; None for none.
        """
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            return None
        wait = LoadWait(self, key, deadline, again, late, holder)
        self.by_key.setdefault(key, {})[wait] = None
        self._deadlines.add(wait, left_s)
        self.count += 1
        return wait

    def remove(self, wait: LoadWait[K]) -> None:
        """Removes one that is over."""
        self.count -= 1
        self._deadlines.remove(wait)
        waits = self.by_key.get(wait.key)
        if waits is not None:
            waits.pop(wait, None)
            if not waits:
                del self.by_key[wait.key]

    def end(self, key: K) -> None:
        """Has the requests begin whose load is over: from the next turn on."""
        waits = self.by_key.pop(key, None)
        if waits:
            if not self._back:
                asyncio.get_running_loop().call_soon(self._turn)
            self._back.extend(waits)

    def end_all(self) -> None:
        """Has all requests begin: the process drains."""
        for key in list(self.by_key):
            self.end(key)

    def _turn(self) -> None:
        begun = 0
        try:
            while self._back and begun < BEGUN_A_TURN:
                wait = self._back.popleft()
                begun += not wait.is_over
                wait.begin()
        finally:  # a request that raises must not keep the others waiting
            if self._back:
                asyncio.get_running_loop().call_soon(self._turn)


class ReturningWaits(LoadWaits[Lane]):
    """The requests of one process that wait for versions that made room for others.

    Args:
        directory: says which versions are away.
        most: most requests that wait.
    """

    def __init__(self, directory: Directory, most: int) -> None:
        super().__init__()
        self._directory, self._most = directory, most
        self._held: Counter[object] = Counter()
        """Requests that wait, by their callers."""
        self._ask_timer: asyncio.TimerHandle | None = None
        directory.settled = self.end

    def add(
        self,
        key: Lane,
        deadline: float,
        again: Callable[[], None],
        late: Callable[[], None],
        holder: object = None,
    ) -> LoadWait[Lane] | None:
        """Has a request wait; returns None if there is no room for it either."""
        if self.count >= self._most or self._has_share(holder):
            return None
        wait = super().add(key, deadline, again, late, holder)
        if wait is not None and holder is not None:
            self._held[holder] += 1
        if wait is not None and self._ask_timer is None:
            self._ask_timer = asyncio.get_running_loop().call_later(ASKED_EVERY_S, self._ask)
        return wait

    def remove(self, wait: LoadWait[Lane]) -> None:
        """Removes one that is over, from its caller's share too."""
        super().remove(wait)
        if wait.holder is not None:
            self._held[wait.holder] -= 1
            if not self._held[wait.holder]:
                del self._held[wait.holder]

    def end_all(self) -> None:
        """Has all requests begin, and no other wait."""
        self._most = 0
        super().end_all()

    def _has_share(self, holder: object) -> bool:
        """Returns True if a caller has its share already, as `Tenant.check_share` counts it."""
        if holder is None or self.count * 2 < self._most:
            return False
        own = self._held[holder]
        active = len(self._held) + (not own)
        return active > 1 and own * active >= self._most

    def _ask(self) -> None:
        """Asks for the versions that requests still wait for."""
        self._ask_timer = None
        for lane in self.by_key:
            if self._directory.is_unloaded(lane):
                self._directory.miss(lane)
        if self.by_key:
            loop = asyncio.get_running_loop()
            self._ask_timer = loop.call_later(ASKED_EVERY_S, self._ask)


def _nothing() -> None:
    """Callback of a wait that is over."""
