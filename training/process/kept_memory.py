"""Whether the C library keeps the memory that training frees, or gives it back to the system.

A step frees tensors that the next one asks for again. By its own rule glibc hands the large ones to
the system in between, which fills them with zeros each time: a tenth of the time of a CNN on a CPU.

Rules kept here: what a person has told the C library about memory stays as it is; once training is
over, what it has kept is given back, for exports and their proofs run in other processes.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, as in `malloc.h`, in bytes: how much may lie free before it is given back, and from
what size on a piece is the system's own, and goes back to it when it is freed."""
LARGEST = 2**31 - 1
HIGHEST_MMAP_THRESHOLD = 2**25
"""What some releases of glibc take at most, and where its own rule ends, which follows the sizes of
what is freed: once it was told a size, it follows none any more."""
TOLD_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Variables by which a person tells it, beside `GLIBC_TUNABLES`."""


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """While the block lasts, freed memory stays with the process; then it goes back.

    Where the C library is no glibc, or was told otherwise, nothing changes.
    """
    library = None if _was_told() else _glibc()
    if library is None:
        yield
        return
    if not library.mallopt(MMAP_THRESHOLD, LARGEST):
        library.mallopt(MMAP_THRESHOLD, HIGHEST_MMAP_THRESHOLD)
    library.mallopt(TRIM_THRESHOLD, LARGEST)
    try:
        yield
    finally:
        library.mallopt(MMAP_THRESHOLD, HIGHEST_MMAP_THRESHOLD)
        library.mallopt(TRIM_THRESHOLD, 2 * HIGHEST_MMAP_THRESHOLD)
        library.malloc_trim(0)


def _was_told() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in TOLD_BY)


def _glibc() -> Any:
    """The C library; None if it is another one."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
