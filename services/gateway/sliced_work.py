"""Runs work that is too long for one turn of the event loop in slices.

In: generators that yield after each slice. Out: their results, by a callback on the event loop.

Rules:
- one turn of the event loop spends `TURN_S` and the end of one slice on all of them together, and
  less in one that has read the whole of a large body before (`BEGINNING_S`);
- sockets are polled between two turns;
- they take turns, a slice each, so that a small one does not wait for a large one; only one of
  those over `LARGE_BYTES` runs at a time, since its results take memory meanwhile. The smallest
  is next, so that the largest bodies do not delay it, but each `OLDEST_EVERY` times the oldest;
- abandoned work is dropped at its next slice;
- threads that wait for the interpreter lock get it between turns;
- a generator bounds its own slices: none takes longer than about `TURN_S`.

A thread would not help: the parsers hold the interpreter lock, and the event loop would wait for
it as long as for the parser (docs/adr/0036).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from services.errors import TooManyInFlightError
from services.interpreter_lock import lend_lock

TURN_S = 0.001
"""Another connection's request waits for at most two turns: one before it is read, one before its
response is sent."""
BEGINNING_S = 0.0005
"""Time of the first slices of work in an idle server. To read 1 MB just before has taken 0.8 ms."""
LARGE_BYTES = 8 * 2**20
OLDEST_EVERY = 4
"""A flood of small ones among the large leaves this part of the time to the others."""
MAX_WAITING = 1024
"""Most jobs at once. Their bodies also count against `max_buffered_bytes`."""

T = TypeVar("T")
Slices = Generator[None, None, T]
"""Yields after each slice, and returns the result."""

_Job = tuple[
    Slices[Any], Callable[[Any], None], Callable[[Exception], None], Callable[[], bool], int
]


def at_once(slices: Slices[T]) -> T:
    """Runs all slices without a pause, for callers outside of an event loop."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typeshed has Any


class SlicedWork:
    """Schedules long work in the turns of one event loop."""

    __slots__ = ("_jobs", "_large", "_started", "_turn_asked")

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._large: deque[_Job] = deque()
        """Large jobs; the first is among `_jobs`, the others wait, the oldest first."""
        self._started = 0
        """Large jobs that have waited and were started."""
        self._turn_asked = False

    def begin(
        self,
        slices: Slices[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        is_over: Callable[[], bool],
        size: int = 0,
    ) -> None:
        """Starts work; its first slices run at once if this turn has run none.

        Args:
            slices: the work.
            done: callback for its result, perhaps called before this returns.
            failed: callback for an exception.
            is_over: function that returns True once the work is abandoned; then neither is called.
            size: bytes of its input, if it takes memory for as many more.

        Raises:
            TooManyInFlightError: `MAX_WAITING` jobs are in flight.
        """
        if len(self._jobs) + len(self._large) >= MAX_WAITING:
            raise TooManyInFlightError(
                f"{MAX_WAITING} large requests and answers are being read and written here, the "
                "limit; retry later or add servers"
            )
        job = slices, done, failed, is_over, size
        if size > LARGE_BYTES:
            self._large.append(job)
        if size <= LARGE_BYTES or len(self._large) == 1:
            self._jobs.append(job)
        if not self._turn_asked:
            # uvloop runs what is called soon by a callback of a socket before it polls again.
            self._spend(BEGINNING_S, self._after_poll)

    async def run(self, slices: Slices[T], size: int = 0) -> T:
        """Runs work, and waits for it; `size` is as in `begin`.

        Raises:
            Exception: any exception of the work.
            TooManyInFlightError: as `begin`.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # Only called while the future is not done: a future that is cancelled is over.
        self.begin(slices, future.set_result, future.set_exception, future.done, size)
        return await future

    def _next_turn(self) -> None:
        self._turn_asked = False
        if self._jobs:
            lend_lock()
            self._spend(TURN_S, self._next_turn)

    def _after_poll(self) -> None:
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _spend(self, seconds: float, then: Callable[[], None]) -> None:
        """Runs slices for a while; `then` is called in the next turn of the loop."""
        self._turn_asked = True
        asyncio.get_running_loop().call_soon(then)
        jobs, end = self._jobs, time.perf_counter() + seconds
        if len(self._large) > 1:
            self._drop_waiting()
        while jobs:
            job = slices, done, failed, is_over, _ = jobs.popleft()
            if is_over():
                slices.close()
                self._ended(job)
                continue
            try:
                next(slices)
            except StopIteration as stop:
                self._ended(job)
                done(stop.value)
            except Exception as error:
                self._ended(job)
                failed(error)
            else:
                jobs.append(job)
            if time.perf_counter() >= end:
                return

    def _ended(self, job: _Job) -> None:
        """Starts the next large job after a large one ended."""
        if self._large and self._large[0] is job:
            self._large.popleft()
            if self._large:
                self._start_large()

    def _start_large(self) -> None:
        large = self._large
        self._started += 1
        if self._started % OLDEST_EVERY:
            smallest = min(large, key=lambda job: job[4])
            large.remove(smallest)
            large.appendleft(smallest)
        self._jobs.append(large[0])

    def _drop_waiting(self) -> None:
        """Drops abandoned large jobs that have not begun: each holds a body."""
        first, *waiting = self._large
        self._large = deque([first])
        for job in waiting:
            slices, _, _, is_over, _ = job
            if is_over():
                slices.close()
            else:
                self._large.append(job)
