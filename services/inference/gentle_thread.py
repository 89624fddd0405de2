"""Work beside serving, such as proving the next version, that should not slow what is served.

In: a function. Out: what it returns or raises, from a thread that yields the processor.

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
STEPS_BEHIND_THE_LOOP = 4
"""Of what runs a model: the event loop gets 71 % of a core that both want. What it does must be
done anyway, and until it is, small models' requests wait for large ones' batches (ADR 34)."""

T = TypeVar("T")


def run_gently(work: Callable[[], T]) -> T:
    """Runs a function at lower priority, and waits for it.

    Threads that it starts inherit the priority, and keep it: what opens thread pools that are
    to serve later must not be run here.
    """
    return start_gently(work).result()


def start_gently(work: Callable[[], T], steps: int = NICENESS) -> "Future[T]":
    """The same, and waits for nothing; the thread ends with the process at the latest.

    Args:
        work: what to run.
        steps: of niceness. What holds the interpreter's lock for long wants few: on a machine that
            others keep busy, the event loop waits until the thread is given the processor.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # whoever waits no more does not end it

    def run() -> None:
        step_back(steps)
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="gentle", daemon=True)
    thread.start()
    return outcome


def step_back(steps: int) -> None:
    """Lowers the priority of the thread that calls, for good; elsewhere than on Linux not at all.

    Args:
        steps: of niceness behind the main thread of the process.
    """
    step_behind(os.getpid(), steps)


def step_behind(process: int, steps: int) -> None:
    """The same behind another process; never raises a priority."""
    if sys.platform == "linux":  # elsewhere priority is the whole process's
        with contextlib.suppress(OSError):
            ahead = os.getpriority(os.PRIO_PROCESS, process)
            now = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, max(now, min(ahead + steps, 19)))
