"""Memory that was freed goes back to the system.

malloc keeps what lies below a piece in use. After a flood of small messages that was 550 MiB, which
large bodies, each in memory of its own, cannot use: a flood of those would come on top.
"""

import asyncio
import ctypes
import time
from collections.abc import Callable

PAUSE_S = 0.5
"""Between two calls: a server whose callers send large messages asks for the same memory again."""
_SHORT_PAUSES = 4
"""Where memory is short, between two calls: so many times what the last took."""
_SHORT_PART = 4
"""Where memory is short, this part of what is worth a call at other times is."""


def give_back() -> None:
    """Has the C library do it, if it is one that can: 0.1 ms for each MiB (malloc_trim(3))."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


class Drawdown:
    """The largest fall of a number below its highest point before."""

    __slots__ = ("_high", "fall")

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, value: int) -> None:
        """Forgets what was; the number is `value`."""
        self._high, self.fall = value, 0

    def see(self, value: int) -> None:
        """The number is `value` now."""
        if value > self._high:
            self._high = value
        elif self._high - value > self.fall:
            self.fall = self._high - value


class FreedMemory:
    """Watches the bytes that are held, and gives back the memory of those that were.

    What has been freed counts until it is given back, whatever is held since. Large buffers and
    small pieces are watched apart: neither takes the memory that the other has left.

    Args:
        least_bytes: of freed memory that are worth it.
        limit_bytes: of what is held and what is freed, before memory is short.
        give_back: run in a thread.
        pause_s: between two runs while memory is not short.
    """

    __slots__ = (
        "_give_back", "_large", "_least_bytes", "_limit_bytes", "_pause_s", "_running", "_since",
        "_small", "_took_s",
    )  # fmt: skip

    def __init__(
        self,
        least_bytes: int,
        limit_bytes: int,
        give_back: Callable[[], None] = give_back,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._least_bytes, self._limit_bytes = least_bytes, limit_bytes
        self._give_back = give_back
        self._pause_s = pause_s
        self._since = self._took_s = 0.0
        self._running: asyncio.Future[None] | None = None
        self._small, self._large = Drawdown(), Drawdown()

    @property
    def is_running(self) -> bool:
        """True while memory is being given back."""
        return self._running is not None and not self._running.done()

    def look(self, held_bytes: int, large_bytes: int) -> None:
        """Gives memory back, in a thread, if enough of it is free and the last time was long ago.

        Args:
            held_bytes: now, all of them.
            large_bytes: of those, in large buffers.
        """
        small, large = self._small, self._large
        small.see(held_bytes - large_bytes)
        large.see(large_bytes)
        freed_bytes = small.fall + large.fall
        is_short = held_bytes + freed_bytes > self._limit_bytes
        least_bytes = self._least_bytes // _SHORT_PART if is_short else self._least_bytes
        if freed_bytes < least_bytes or self.is_running:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._since >= (_SHORT_PAUSES * self._took_s if is_short else self._pause_s):
            self._since = now
            small.restart(held_bytes - large_bytes)
            large.restart(large_bytes)
            self._running = loop.run_in_executor(None, self._run)

    def _run(self) -> None:
        began = time.monotonic()
        self._give_back()
        self._took_s = time.monotonic() - began
