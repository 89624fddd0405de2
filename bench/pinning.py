"""Keeps the server and the load apart: one core each, so that neither measures the other."""

import os
from collections.abc import Callable

SERVER_CORE = 0
CLIENT_CORE = 1


def cores_apart() -> bool:
    """Whether there are two cores to keep apart."""
    return {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0)


def pinned_to(core: int) -> Callable[[], None]:
    """A `preexec_fn` that pins a child process, or does nothing on a single core."""

    def pin() -> None:
        if cores_apart():
            os.sched_setaffinity(0, {core})

    return pin
