"""Memory of one process, from /proc; `bench/peers/process_tree.py` has a whole tree's."""

from pathlib import Path


def resident_mebibytes(pid: int) -> float:
    """All its memory in RAM now, pages it shares with others included (RSS, see proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} shows no VmRSS")
