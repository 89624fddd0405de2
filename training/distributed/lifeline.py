"""Ends a process when whoever started it is gone, however it went.

Whoever starts it holds the other end of its standard input, and never writes.
"""

import os
import signal
import sys
import threading


def hold_lifeline() -> None:
    """From now on, the end of standard input ends this process and its group."""
    threading.Thread(target=_end_with_parent, daemon=True, name="lifeline").start()


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.killpg(0, signal.SIGKILL)
