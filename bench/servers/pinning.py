"""Separates server and load: one core each, so that neither disturbs the other's measurement."""

import functools
import gc
import os
from collections.abc import Callable

SERVER_CORE = 0
CLIENT_CORE = 1


@functools.cache
def cores_apart() -> bool:
    """Returns True if there were two cores to separate at the first call.

    The result is cached: a process that has pinned itself to one core still pins its children to
    the other.
    """
    return {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0)


def pinned_to(core: int) -> Callable[[], None]:
    """Returns a `preexec_fn` that pins a child process; on a single core it does nothing."""
    apart = cores_apart()

    def pin() -> None:
        if apart:
            os.sched_setaffinity(0, {core})

    return pin


def become_client() -> None:
    """Pins this process to the client's core, and freezes imported objects for the garbage
    collector: scanning torch's modules causes pauses of tens of milliseconds.
    """
    pinned_to(CLIENT_CORE)()
    gc.collect()
    gc.freeze()
