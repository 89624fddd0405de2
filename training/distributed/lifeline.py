"""Ends a process when its parent is gone, for whatever reason.

The parent holds the other end of its standard input, and never writes.
"""

import os
import signal
import sys
import threading


def hold_lifeline() -> None:
    """Kills this process and its group at the end of standard input, from now on."""
    threading.Thread(target=_end_with_parent, daemon=True, name="lifeline").start()


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.killpg(0, signal.SIGKILL)
