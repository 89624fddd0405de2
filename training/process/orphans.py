"""Ends processes that code of a model has left behind in sessions of their own.

Rules: on Linux, this process becomes the parent of orphaned descendants (`PR_SET_CHILD_SUBREAPER`
of prctl(2)); those in this process' session are its own, and stay.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""The option of prctl(2)."""
ROUNDS = 1000
"""Limit on ending the children of ended processes: code that forks for ever is left to the user."""


@contextlib.contextmanager
def ending_orphans() -> Iterator[None]:
    """At the end of the block, ends the orphans that isolated runs in it have left behind."""
    before = set(_orphans())
    _adopt(True)
    try:
        yield
    finally:
        for _ in range(ROUNDS):
            if not (found := set(_orphans()) - before):
                break
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process, 0)  # its children are orphans now
        _adopt(False)


def _adopt(adopts: bool) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopts))


def _orphans() -> Iterator[int]:
    """Yields the children of this process that are in other sessions."""
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for process in map(int, children.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(process) != os.getsid(0):
                        yield process
