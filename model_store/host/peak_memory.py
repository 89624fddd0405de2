"""Measures the peak memory of a piece of code, as Linux counts it for this process.

In: code that runs after `PeakMemory()`. Out: resident bytes at the peak, minus those before.
"""

import contextlib
from pathlib import Path

KIB = 2**10
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Resets the peak to the current usage (proc(5), `/proc/pid/clear_refs`)."""


class PeakMemory:
    """Measures from its creation on; not for two pieces of code at once."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            CLEAR.write_text(RESET_PEAK)
        self._before = _status_bytes("VmRSS")

    def grown_bytes(self) -> int | None:
        """Returns the growth to the peak since creation; None if the system does not report it."""
        peak = _status_bytes("VmHWM")
        if self._before is None or peak is None:
            return None
        return max(peak - self._before, 0)


def _status_bytes(name: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    return None
