"""Requests that wait for a version that made room for others, until it is loaded again.

In: requests whose version is away. Out: the same once it is back, or an error that says why not.

Rules:
- a request waits until its deadline at most, and is refused as retryable then;
- at most a share of the requests in flight wait; further ones are refused at once, and from half
  of it on those of a caller that has an equal share among several;
- requests whose version is back begin in several turns of the event loop;
- a version is asked for again every `ASKED_EVERY_S`, since a model process that ended has forgotten
  that it was.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from services.queueing.deadlines import Deadlines
from services.queueing.directory import Directory
from services.queueing.records import Lane

BEGUN_A_TURN = 8
"""Requests that begin in one turn of the event loop: each is decoded or admitted, 25 to 100 µs."""
ASKED_EVERY_S = 1.0


class LoadWait:
    """A request that waits.

    Args:
        waits: those of the process.
        lane: the version that it waits for.
        deadline: `time.monotonic()` second.
        again: called once its version is back, or will not come.
        late: called at its deadline.
        holder: the caller whose share it counts against; None for none.
    """

    __slots__ = ("_again", "_late", "_waits", "deadline", "holder", "is_over", "lane", "tick")

    def __init__(
        self,
        waits: "LoadWaits",
        lane: Lane,
        deadline: float,
        again: Callable[[], None],
        late: Callable[[], None],
        holder: object = None,
    ) -> None:
        self._waits, self.lane, self.deadline, self.holder = waits, lane, deadline, holder
        self._again, self._late = again, late
        self.tick = 0
        self.is_over = False

    def begin(self) -> None:
        """Ends the wait: the version is back, or will not come."""
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
        """Ends the wait: the caller has gone, or the process drains."""
        if not self.is_over:
            self.is_over = True
            self._again = self._late = _nothing  # they hold the request
            self._waits.remove(self)


class LoadWaits:
    """The requests of one process that wait for versions.

    Args:
        directory: says which versions are away.
        most: most requests that wait.

    Attributes:
        count: requests that wait.
    """

    def __init__(self, directory: Directory, most: int) -> None:
        self.count = 0
        self._directory, self._most = directory, most
        self._by_lane: dict[Lane, dict[LoadWait, None]] = {}
        self._deadlines: Deadlines[LoadWait] = Deadlines()
        self._held: Counter[object] = Counter()
        """Requests that wait, by their callers."""
        self._back: deque[LoadWait] = deque()
        """Those whose version is back."""
        self._ask_timer: asyncio.TimerHandle | None = None
        directory.settled = self._settled

    def add(
        self,
        lane: Lane,
        deadline: float,
        again: Callable[[], None],
        late: Callable[[], None],
        holder: object = None,
    ) -> LoadWait | None:
        """Has a request wait; returns None if there is no room for it, or no time.

        Args:
            lane: the version that it needs.
            deadline: `time.monotonic()` second.
            again: called once the version is back or will not come; not in this turn.
            late: called at the deadline.
            holder: the caller whose share it counts against; None for none.
        """
        loop = asyncio.get_running_loop()
        left_s = deadline - loop.time()
        if self.count >= self._most or left_s <= 0 or self._has_share(holder):
            return None
        wait = LoadWait(self, lane, deadline, again, late, holder)
        self._by_lane.setdefault(lane, {})[wait] = None
        self._deadlines.add(wait, left_s)
        self.count += 1
        if holder is not None:
            self._held[holder] += 1
        if self._ask_timer is None:
            self._ask_timer = loop.call_later(ASKED_EVERY_S, self._ask)
        return wait

    def _has_share(self, holder: object) -> bool:
        """Returns True if a caller has its share already, as `Tenant.check_share` counts it."""
        if holder is None or self.count * 2 < self._most:
            return False
        own = self._held[holder]
        active = len(self._held) + (not own)
        return active > 1 and own * active >= self._most

    def remove(self, wait: LoadWait) -> None:
        """Removes one that is over."""
        self.count -= 1
        if wait.holder is not None:
            self._held[wait.holder] -= 1
            if not self._held[wait.holder]:
                del self._held[wait.holder]
        self._deadlines.remove(wait)
        waits = self._by_lane.get(wait.lane)
        if waits is not None:
            waits.pop(wait, None)
            if not waits:
                del self._by_lane[wait.lane]

    def begin_all(self) -> None:
        """Has all requests begin, and no other wait: the process drains."""
        self._most = 0
        for lane in list(self._by_lane):
            self._settled(lane)

    def _settled(self, lane: Lane) -> None:
        """Has the requests for a version begin: its lane is open from the next turn on."""
        waits = self._by_lane.get(lane)
        if waits:
            if not self._back:
                asyncio.get_running_loop().call_soon(self._turn)
            self._back.extend(waits)

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

    def _ask(self) -> None:
        """Asks for the versions that requests still wait for."""
        self._ask_timer = None
        for lane in self._by_lane:
            if self._directory.is_unloaded(lane):
                self._directory.miss(lane)
        if self._by_lane:
            loop = asyncio.get_running_loop()
            self._ask_timer = loop.call_later(ASKED_EVERY_S, self._ask)


def _nothing() -> None:
    """Callback of a wait that is over."""
