"""Measures how long a callback waits for the event loop, sampled from a separate thread.

In: the running loop. Out: a histogram of seconds from scheduling a callback to its call. A timer
of the loop itself would be less precise: libuv rounds timers to milliseconds.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

from services.background_thread import background_thread
from services.telemetry.loop_metrics import HistogramChild

INTERVAL_S = 0.25


@contextlib.contextmanager
def sampling_lag(seconds: HistogramChild) -> Iterator[None]:
    """Samples the running loop's lag four times a second during the block."""
    loop = asyncio.get_running_loop()

    def answered(asked: float) -> None:
        seconds.observe(time.monotonic() - asked)

    def sample(over: threading.Event) -> None:
        while not over.wait(INTERVAL_S):
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(answered, time.monotonic())

    with background_thread("loop-lag", sample):
        yield
