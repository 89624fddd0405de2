"""How long a callback waits for the event loop, sampled from a thread beside it.

In: the loop that runs. Out: a histogram of seconds, from asking the loop to its answer. A timer
of the loop itself would tell less: libuv rounds timers to milliseconds.
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
    """Within the block, samples the running loop's lag four times a second."""
    loop = asyncio.get_running_loop()

    def answered(asked: float) -> None:
        seconds.observe(time.monotonic() - asked)

    def sample(over: threading.Event) -> None:
        while not over.wait(INTERVAL_S):
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(answered, time.monotonic())

    with background_thread("loop-lag", sample):
        yield
