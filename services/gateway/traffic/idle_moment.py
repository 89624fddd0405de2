"""Finds moments at which the event loop has no work for callers, and how much to do in them.

In: the number of requests that callers wait for, and the time of the loop's thread. Out: callbacks
and permissions. Work that no caller waits for, done in such a moment, delays only the requests that
arrive while it runs; done at any other, it delays all those that wait for the loop as well.

Where a loop is busy for a part u of the time, its requests wait for a time that grows with
1 / (1 - u). So work for a twentieth of the idle time, 1 - u, lengthens waits by a twentieth.
"""

import asyncio
import time
from collections.abc import Callable

TURNS = 3
"""Iterations of the loop for which nothing may happen: uvloop reads its sockets after the first,
a received request may begin in the second, and a batch of it in the third."""

LOOK_EVERY_S = 0.02
"""Interval at which the idle time is measured: a call of the kernel takes 0.3 µs."""


class IdleMoment:
    """Waits for moments at which the loop is idle.

    Args:
        waiting: returns the number of requests whose callers wait.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting

    def ask(self, until: float, then: Callable[[bool], None]) -> None:
        """Calls back when the number of requests has stayed the same for `TURNS` iterations.

        Requests that wait for a device do not keep the loop from being idle. One that comes while
        another goes is not noticed: the work then delays it. Until then the loop does not sleep,
        which costs at most `TURNS` empty iterations for each that had work.

        Args:
            until: `time.monotonic()` second at which it gives up.
            then: called once: with True if the loop is idle, and False at `until`.
        """
        self._turn(self._waiting(), TURNS, until, then)

    def _turn(self, before: int, left: int, until: float, then: Callable[[bool], None]) -> None:
        waiting = self._waiting()
        if waiting != before:
            left = TURNS
        if not left or time.monotonic() >= until:
            then(not left)
        else:
            asyncio.get_running_loop().call_soon(self._turn, waiting, left - 1, until, then)


class IdleShare:
    """Permits pieces of work that together take a part of the time for which the loop is idle.

    Args:
        part: the part, above 0, at most 1.
        piece_s: seconds of the loop that a piece takes.
        most: most pieces at once after a pause.
        clock: seconds, by a clock that only goes forward.
        busy_clock: seconds for which the calling thread has run.
    """

    def __init__(
        self,
        part: float,
        piece_s: float,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        busy_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pieces_a_second, self._most = part / piece_s, most
        self._clock, self._busy_clock = clock, busy_clock
        self._left = float(most)
        self._at, self._busy_s = clock(), busy_clock()

    def take(self) -> bool:
        """Takes a piece; returns False if there is none. Called on the event loop."""
        now = self._clock()
        if now - self._at >= LOOK_EVERY_S:
            busy_s = self._busy_clock()
            idle_s = max(now - self._at - (busy_s - self._busy_s), 0.0)
            self._left = min(self._left + idle_s * self._pieces_a_second, self._most)
            self._at, self._busy_s = now, busy_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
