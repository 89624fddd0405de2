"""Limits the requests of pipelines that the worker of one model holds.

In: requests of steps, of all pipelines. Out: places, at once or later.

Rules: the queue of a model has a limit for its own callers, which steps do not pass; so steps have
a limit of their own, small enough that half of the queue remains for these callers. A step that
gets no place waits in its run, the earliest deadline first; nothing is refused, because the lane of
the pipeline has a limit, too. Each priority has its own places: jobs, which run while nothing else
waits, keep no request from the model.
"""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from weakref import WeakKeyDictionary

from services.queueing.lane_queue import WorkerIntake

_ARRIVAL = count()


class Waiter:
    """A step that waits for a place."""

    __slots__ = ("has_place", "is_gone", "resume")

    def __init__(self, resume: Callable[[], None]) -> None:
        self.resume = resume
        self.has_place = self.is_gone = False

    def go_on(self) -> None:
        """Resumes the step, unless it is gone."""
        if not self.is_gone:
            self.resume()


class StepGate:
    """The places of one model's worker for requests of one priority.

    Args:
        limit: number of places.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: list[tuple[float, int, Waiter]] = []
        """A heap, by deadline and arrival; while one waits, no place is free."""
        self._gone = 0
        """Waiters in it that are gone."""

    def enter(self) -> bool:
        """Takes a place. Returns False if none is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def wait(self, deadline: float, resume: Callable[[], None]) -> Waiter:
        """Waits for a place.

        Args:
            deadline: deadline of the request, a `time.monotonic()` second.
            resume: called in a turn of the event loop, with the place taken.
        """
        waiter = Waiter(resume)
        heapq.heappush(self._waiting, (deadline, next(_ARRIVAL), waiter))
        return waiter

    def leave(self) -> None:
        """Gives a place back: to the first that waits, if any does."""
        while self._waiting:
            waiter = heapq.heappop(self._waiting)[2]
            if waiter.is_gone:
                self._gone -= 1
                continue
            waiter.has_place = True
            asyncio.get_running_loop().call_soon(waiter.go_on)
            return
        self._free += 1

    def forget(self, waiter: Waiter) -> None:
        """Forgets a waiter that was not resumed: its run is over."""
        waiter.is_gone = True
        if waiter.has_place:
            self.leave()
            return
        self._gone += 1
        if self._gone * 2 > len(self._waiting):
            self._waiting = [one for one in self._waiting if not one[2].is_gone]
            heapq.heapify(self._waiting)
            self._gone = 0


class StepGates:
    """The gates of all workers.

    Args:
        max_depth: most entries that may wait in the queue of a model.
    """

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._gates: WeakKeyDictionary[WorkerIntake, defaultdict[int, StepGate]] = (
            WeakKeyDictionary()
        )

    def of(self, worker: WorkerIntake) -> defaultdict[int, StepGate]:
        """Returns the gates of a worker by priority."""
        if worker not in self._gates:
            limit = max(min(worker.capacity, self._max_depth // 2), 1)
            self._gates[worker] = defaultdict(lambda: StepGate(limit))
        return self._gates[worker]
