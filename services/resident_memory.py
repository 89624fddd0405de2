"""The resident memory of a process."""

import os
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Bytes that a process has in RAM; 0 if there is no such process, or no Linux to tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
