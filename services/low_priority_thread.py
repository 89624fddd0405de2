"""Runs work beside the event loop in threads of lower CPU priority.

In: a function, such as the proof of the next version. Out: its result, or its error.

A thread of the lowest priority gets a thirtieth of a core that a backend wants as well, and all of
one that nobody wants. More would not do: with a quarter of a core, a server at 70 % of its load has
almost none left, and requests pile up (p99 of the encoder during a swap rose 1.7- to 5-fold). Nor
would less, for while the thread holds the interpreter's lock, others wait for it to be given the
processor.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

NICENESS = 19
"""See sched(7): a step is a quarter more or less of the processor."""
STEPS_BELOW_LOOP = 4
"""Of threads that run a model or decompress a body: the event loop gets 71 % of a core that both
want. Its work must be done anyway, and until then small models' requests wait for large ones'
batches (ADR 34)."""

T = TypeVar("T")


def run_at_low_priority(work: Callable[[], T]) -> T:
    """Runs a function in a thread of the lowest priority, and waits for it.

    Threads that it starts inherit the priority and keep it: do not open thread pools for serving
    here.
    """
    return start_at_low_priority(work).result()


def start_at_low_priority(work: Callable[[], T], steps: int = NICENESS) -> "Future[T]":
    """Starts a function in a daemon thread of low priority.

    Args:
        work: what to run.
        steps: of niceness. Use few for work that holds the interpreter's lock for long: on a busy
            machine the event loop waits until such a thread gets the processor.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # whoever waits no more does not end it

    def run() -> None:
        lower_priority(steps)
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="low-priority", daemon=True)
    thread.start()
    return outcome


def lower_priority(steps: int) -> None:
    """Lowers the priority of the calling thread for good; does nothing except on Linux.

    Args:
        steps: of niceness below the main thread of the process.
    """
    lower_priority_below(os.getpid(), steps)


def lower_priority_below(process: int, steps: int) -> None:
    """Lowers the calling thread's priority below another process's; never raises a priority."""
    if sys.platform == "linux":  # elsewhere priority is the whole process's
        with contextlib.suppress(OSError):
            ahead = os.getpriority(os.PRIO_PROCESS, process)
            now = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, max(now, min(ahead + steps, 19)))
