"""CPU time and memory of a process, from /proc."""

import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads so far; the kernel counts in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def resident_mebibytes(pid: int) -> float:
    """Memory in RAM now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} shows no VmRSS")
