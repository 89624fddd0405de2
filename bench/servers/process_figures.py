"""Memory of one process and steal time of the machine, from /proc; see proc(5).

`bench/peers/process_tree.py` has the figures of a whole tree.
"""

import os
from pathlib import Path


def resident_mebibytes(pid: int) -> float:
    """Returns its current memory in RAM, including pages shared with other processes (RSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} shows no VmRSS")


def stolen_seconds() -> float:
    """Returns the steal time of all cores since boot: the host ran others while they were due."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
