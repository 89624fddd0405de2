"""Runs work beside the event loop in threads of lower CPU priority.

In: a function, such as loading the next version. Out: its result, or its error.

A thread of the lowest priority gets a thirtieth of a core that a backend also uses, and all of an
idle one. A larger share is too much: with a quarter of a core, a server at 70 % of its load has
almost no capacity left, and requests queue up (p99 of the encoder during a swap rose 1.7- to
5-fold). A smaller share is too little: while the thread holds the GIL, others wait until it is
scheduled.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

NICENESS = 19
"""Lowest priority, see sched(7): a step changes the share of the processor by a quarter."""
STEPS_BELOW_LOOP = 4
"""Steps for threads that run a model or decompress a body: the event loop gets 71 % of a core that
both use. The loop's work is due in any case, and until it is done, requests of small models wait
for batches of large ones (ADR 45)."""

T = TypeVar("T")


def run_at_low_priority(work: Callable[[], T], steps: int = NICENESS) -> T:
    """Runs a function in a thread of low priority, by default the lowest, and waits for its result.

    Threads that it starts inherit the priority and keep it: do not create thread pools for serving
    here.
    """
    return start_at_low_priority(work, steps).result()


def start_at_low_priority(work: Callable[[], T], steps: int = NICENESS) -> "Future[T]":
    """Starts a function in a daemon thread of low priority.

    Args:
        work: function to run.
        steps: steps of niceness. Use few for work that holds the GIL for long: on a busy machine
            the event loop waits until such a thread is scheduled.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # a cancelled waiter does not cancel the work

    def run() -> None:
        lower_priority(steps)
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="low-priority", daemon=True)
    thread.start()
    return outcome


async def beside_loop(work: Callable[[], T], steps: int = STEPS_BELOW_LOOP) -> T:
    """Runs a function in a daemon thread: the event loop goes on, and its end does not wait."""
    return await asyncio.wrap_future(start_at_low_priority(work, steps))


def lower_priority(steps: int) -> None:
    """Lowers the priority of the calling thread permanently, on Linux only.

    Args:
        steps: steps of niceness below the main thread of the process.
    """
    lower_priority_below(os.getpid(), steps)


def lower_priority_below(process: int, steps: int) -> None:
    """Lowers the calling thread's priority below another process's; never raises a priority."""
    if sys.platform == "linux":  # elsewhere the priority is that of the whole process
        with contextlib.suppress(OSError):
            ahead = os.getpriority(os.PRIO_PROCESS, process)
            now = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, max(now, min(ahead + steps, 19)))
