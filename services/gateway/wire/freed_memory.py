"""Memory that was freed goes back to the system.

malloc keeps what lies below a piece in use. After a flood of small messages that was 550 MiB, which
large bodies, each in memory of its own, cannot use: a flood of those would come on top.
"""

import asyncio
import ctypes
from collections.abc import Callable

PAUSE_S = 0.5
"""Between two calls: a server whose callers send large messages asks for the same memory again."""


def give_back() -> None:
    """Has the C library do it, if it is one that can: 0.1 ms for each MiB (malloc_trim(3))."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


class FreedMemory:
    """Watches a number of bytes that are held, and gives memory back behind its highest points.

    Args:
        least_bytes: that are worth it.
        give_back: run in a thread.
        pause_s: between two runs.
    """

    __slots__ = ("_give_back", "_least_bytes", "_pause_s", "_running", "_since", "high_bytes")

    def __init__(
        self,
        least_bytes: int,
        give_back: Callable[[], None] = give_back,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._least_bytes = least_bytes
        self._give_back = give_back
        self._pause_s = pause_s
        self._since = 0.0
        self._running: asyncio.Future[None] | None = None
        self.high_bytes = 0
        """The most that was held since memory was given back; whoever holds more writes it here."""

    def look(self, held_bytes: int) -> None:
        """Gives back, in a thread, if enough is free and the last time was long ago.

        Args:
            held_bytes: now.
        """
        if self.high_bytes - held_bytes < self._least_bytes:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._since >= self._pause_s and (self._running is None or self._running.done()):
            self._since, self.high_bytes = now, held_bytes
            self._running = loop.run_in_executor(None, self._give_back)
