"""The resident memory of a process."""

import os
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Returns the resident bytes of a process; 0 if it does not exist, or outside Linux."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
