"""How much memory a piece of code takes at its worst, as Linux counts it for this process.

In: code, run inside the block. Out: bytes in RAM at the peak, beyond those before it.
"""

import contextlib
from pathlib import Path

KIB = 2**10
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Sets the peak to what is there now (proc(5), `/proc/pid/clear_refs`)."""


class PeakMemory:
    """Measures from where it is made; not for two pieces of code at once."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            CLEAR.write_text(RESET_PEAK)
        self._before = _status_bytes("VmRSS")

    def grown_bytes(self) -> int | None:
        """The peak since then, beyond what there was; None where the system does not say."""
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
