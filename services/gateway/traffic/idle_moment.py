"""Finds moments at which the event loop has no work for callers.

In: the number of requests that callers wait for. Out: a callback. Work that no caller waits for,
done in such a moment, delays only the requests that arrive while it runs; done at any other, it
delays all those that wait for the loop as well.
"""

import asyncio
import time
from collections.abc import Callable

TURNS = 3
"""Iterations of the loop for which nothing may happen: uvloop reads its sockets after the first,
a received request may begin in the second, and a batch of it in the third."""


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
