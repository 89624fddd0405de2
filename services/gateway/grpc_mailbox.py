"""The way from gRPC's threads onto the event loop: a burst of calls wakes it once, not once each.

In: functions, posted by any thread. Out: the same functions, called on the loop in the order they
were posted.

Rules kept here:
- every function is called exactly once, while the loop runs; one that raises is logged and takes
  no other with it;
- at most `AT_ONCE` of them run before the loop may do something else.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

logger = logging.getLogger("flambeau.grpc")

AT_ONCE = 32
"""A call that begins takes some 20 µs of the loop, so that a full round stays under 1 ms."""

Letter = Callable[[], None]


class Mailbox:
    """Letters to the event loop.

    Args:
        loop: where they are called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[Letter] = deque()
        self._awake = False

    def post(self, letter: Letter) -> None:
        """Has the loop call `letter`; from any thread.

        Raises:
            RuntimeError: the loop is closed.
        """
        self._letters.append(letter)
        # Two threads may both find the loop asleep: one delivery is empty then. None is missed,
        # because a delivery says that it is over before it looks for letters.
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._awake = False
        letters = self._letters
        for _ in range(min(len(letters), AT_ONCE)):
            try:
                letters.popleft()()
            except Exception:
                logger.exception("a call's work on the event loop failed")
        if letters and not self._awake:
            self._awake = True
            self._loop.call_soon(self._deliver)
