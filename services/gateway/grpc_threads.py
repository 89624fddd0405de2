"""How gRPC's threads share a core: a thread that is woken waits until the running one is done.

A call wakes a thread of grpcio three times. By default Linux lets each of them interrupt the one
that woke it, which mostly ends at the interpreter's lock: two switches for nothing. Under
SCHED_BATCH (sched(7)) a woken thread interrupts nobody. It keeps its full share of the processor,
so that the requests of a burst arrive together and share a batch: docs/adr/0005 has the figures.
"""

import contextlib
import os
import sys
from collections.abc import Iterator


def prefer_cheap_pollers() -> None:
    """Has grpcio read its sockets by the older of its two ways, a sixth cheaper a call.

    To be called before `grpc` is first imported, which is when it reads this; whoever set
    `GRPC_EXPERIMENTS` for the process is obeyed. A grpcio that knows the names no more says so
    once, on standard error.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")


def become_patient() -> None:
    """Lets the calling thread, and those it starts, interrupt nobody when they are woken.

    Does nothing where the system has no such thing, forbids it, or where somebody chose another
    policy for this process.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextlib.contextmanager
def starting_patient_threads() -> Iterator[None]:
    """Threads started in this block are patient; the caller is again as it was afterwards."""
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getscheduler(0)
    become_patient()
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != before:
            os.sched_setscheduler(0, before, os.sched_param(0))
