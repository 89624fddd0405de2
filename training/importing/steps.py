"""Tells the steps of an import, and those that take long: an imported file may loop for ever."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STILL_RUNNING_S = 30.0
"""Seconds after which a step is told again: most take less, and people wonder after so long."""


@contextmanager
def told_step(
    say: Callable[[str], None], step: str, limit_s: float, after_s: float = STILL_RUNNING_S
) -> Iterator[None]:
    """Tells a step before the block, and once more if the block takes long.

    Args:
        say: receives a line; it may be called by another thread.
        step: description, such as `verifying onnx`.
        limit_s: time limit of the step's process in seconds.
        after_s: seconds after which it is told again.
    """
    say(step)
    text = f"still {step} after {after_s:g} s; the limit is {limit_s:g} s"
    timer = threading.Timer(after_s, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
