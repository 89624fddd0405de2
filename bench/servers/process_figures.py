"""Memory of one process and what a core was kept from, from /proc; see proc(5).

`bench/peers/process_tree.py` has a whole tree's figures.
"""

import os
from pathlib import Path


def resident_mebibytes(pid: int) -> float:
    """All its memory in RAM now, pages it shares with others included (RSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} shows no VmRSS")


def stolen_seconds(core: int) -> float:
    """How long since the start of the machine its host has run others where this core was due."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            return int(line.split()[8]) / os.sysconf("SC_CLK_TCK")
    raise RuntimeError(f"/proc/stat shows no core {core}")
