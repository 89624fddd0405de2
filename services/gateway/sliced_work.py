"""Work that is longer than a turn of the event loop may be, done in slices.

In: generators that yield after each slice. Out: their results, by a call on the event loop.

Rules kept here:
- one turn of the event loop spends `TURN_S` and the end of one slice on all of them together;
- they take turns, a slice each, so that a small one does not wait for a large one; of those over
  `LARGE_BYTES` one is under way at a time, since memory is taken for what it makes meanwhile;
- one that nobody waits for any more is dropped at its next slice;
- threads that wait for the interpreter's lock get it between turns;
- a generator bounds its own slices: none takes longer than about `TURN_S`.

A thread would not do: the parsers hold the interpreter's lock, and the event loop would wait for
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
"""A neighbour's request waits for at most two turns: one before it is read, one before its answer
is sent."""
LARGE_BYTES = 8 * 2**20
MAX_WAITING = 1024
"""Jobs at once. Their bodies are held within `max_buffered_bytes` besides."""

T = TypeVar("T")
Slices = Generator[None, None, T]
"""Yields after each slice, and returns what was made."""

_Job = tuple[Slices[Any], Callable[[Any], None], Callable[[Exception], None], Callable[[], bool]]


def at_once(slices: Slices[T]) -> T:
    """Runs all slices without a pause, where no event loop waits."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typeshed has Any


class SlicedWork:
    """The share of one event loop's turns that goes to long work."""

    __slots__ = ("_jobs", "_large", "_turn_asked")

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._large: deque[_Job] = deque()
        """The first is among `_jobs`, the others wait."""
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
            done: takes its result, perhaps before this returns.
            failed: takes what it raised instead.
            is_over: whether nobody waits for it any more; then neither is called.
            size: bytes that it is made of, if it takes memory for as many besides.

        Raises:
            TooManyInFlightError: `MAX_WAITING` jobs are under way.
        """
        if len(self._jobs) + len(self._large) >= MAX_WAITING:
            raise TooManyInFlightError(
                f"{MAX_WAITING} large requests and answers are being read and written here, the "
                "limit; retry later or add servers"
            )
        job = slices, done, failed, is_over
        if size > LARGE_BYTES:
            self._large.append(job)
        if size <= LARGE_BYTES or len(self._large) == 1:
            self._jobs.append(job)
        if not self._turn_asked:
            self._spend()

    async def run(self, slices: Slices[T], size: int = 0) -> T:
        """Does work, and waits for it; `size` is as in `begin`.

        Raises:
            Exception: whatever the work raises.
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
            self._spend()

    def _spend(self) -> None:
        """Runs slices for a turn's time."""
        self._turn_asked = True
        asyncio.get_running_loop().call_soon(self._next_turn)
        jobs, end = self._jobs, time.perf_counter() + TURN_S
        if len(self._large) > 1:
            self._drop_waiting()
        while jobs:
            job = slices, done, failed, is_over = jobs.popleft()
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
        """Lets the next large job begin behind a large one."""
        if self._large and self._large[0] is job:
            self._large.popleft()
            if self._large:
                self._jobs.append(self._large[0])

    def _drop_waiting(self) -> None:
        """Drops large jobs that have not begun and that nobody waits for: each holds a body."""
        first, *waiting = self._large
        self._large = deque([first])
        for job in waiting:
            slices, _, _, is_over = job
            if is_over():
                slices.close()
            else:
                self._large.append(job)
