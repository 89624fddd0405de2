"""Returns freed memory to the system.

malloc keeps freed memory below a block in use. After a flood of small messages that was 550 MiB,
which large bodies cannot use: a flood of those would add to it.
"""

import asyncio
import ctypes
import math
import os
import time
from collections.abc import Callable

from services.resident_memory import resident_bytes

PAUSE_S = 0.5
"""Pause between two calls: a server of large messages allocates the same memory again."""
LOOK_S = 0.01
"""Interval of reading the process's memory, of some 20 µs each."""
_SHORT_PAUSES = 4
"""Pause between two calls if memory is short, as a multiple of the last call's duration."""
_SHORT_PART = 4
"""Fraction of the usual threshold of a call that applies if memory is short."""


def give_back() -> None:
    """Calls malloc_trim(3) if the C library has it: 0.1 ms for each MiB."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def _own_resident_bytes() -> int:
    return resident_bytes(os.getpid())


class FreedMemory:
    """Returns memory that the process keeps beyond the held bytes.

    What the process has besides, such as its models, is taken to be the least that there was since
    memory was last given back.

    Args:
        least_bytes: of freed memory that are worth it, once as many have been held.
        limit_bytes: of what is held and what is freed, before memory is short.
        give_back: function that runs in a thread.
        resident: function that returns the process's resident bytes.
        pause_s: pause between two runs while memory is not short.
        look_s: pause between two reads of the process's memory.
    """

    __slots__ = (
        "_besides", "_give_back", "_least_bytes", "_limit_bytes", "_look_s", "_looked", "_most",
        "_pause_s", "_resident", "_running", "_since", "_took_s",
    )  # fmt: skip

    def __init__(
        self,
        least_bytes: int,
        limit_bytes: int,
        give_back: Callable[[], None] = give_back,
        resident: Callable[[], int] = _own_resident_bytes,
        pause_s: float = PAUSE_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._least_bytes, self._limit_bytes = least_bytes, limit_bytes
        self._give_back, self._resident = give_back, resident
        self._pause_s, self._look_s = pause_s, look_s
        self._looked = self._since = -math.inf
        self._took_s = 0.0
        self._running: asyncio.Future[None] | None = None
        # The most that was held since memory was last given back; and what there was besides,
        # None until the first look: what was held then, and is no more, may not have gone back.
        self._most = 0
        self._besides: int | None = None

    @property
    def is_running(self) -> bool:
        """True while memory is being given back."""
        return self._running is not None and not self._running.done()

    def look(self, held_bytes: int) -> None:
        """Returns memory, in a thread, if enough is free and the last run was long ago.

        Args:
            held_bytes: bytes held now.
        """
        self._most = max(self._most, held_bytes)
        if self._most < self._least_bytes // _SHORT_PART or self.is_running:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._looked < self._look_s:
            return
        self._looked = now
        resident_bytes = self._resident()
        if self._besides is None:
            self._besides, self._most = resident_bytes - self._most, held_bytes
        self._besides = min(self._besides, resident_bytes - held_bytes)
        freed_bytes = resident_bytes - held_bytes - self._besides
        is_short = held_bytes + freed_bytes > self._limit_bytes
        least_bytes = self._least_bytes // _SHORT_PART if is_short else self._least_bytes
        pause_s = _SHORT_PAUSES * self._took_s if is_short else self._pause_s
        if freed_bytes >= least_bytes and now - self._since >= pause_s:
            self._since = now
            self._most, self._besides = held_bytes, None
            self._running = loop.run_in_executor(None, self._run)

    def _run(self) -> None:
        began = time.monotonic()
        self._give_back()
        self._took_s = time.monotonic() - began
