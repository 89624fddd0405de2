"""Keeps the server and the load apart: one core each, so that neither measures the other."""

import functools
import gc
import os
from collections.abc import Callable

SERVER_CORE = 0
CLIENT_CORE = 1


@functools.cache
def cores_apart() -> bool:
    """Whether there were two cores to keep apart when this was first asked.

    The answer is kept: a process that has pinned itself to one core still pins its children to
    the other.
    """
    return {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0)


def pinned_to(core: int) -> Callable[[], None]:
    """A `preexec_fn` that pins a child process, or does nothing on a single core."""
    apart = cores_apart()

    def pin() -> None:
        if apart:
            os.sched_setaffinity(0, {core})

    return pin


def become_client() -> None:
    """Pins this process to the client's core, and lets its garbage collector forget what it has
    imported: looking through torch's modules costs pauses of tens of milliseconds.
    """
    pinned_to(CLIENT_CORE)()
    gc.collect()
    gc.freeze()
