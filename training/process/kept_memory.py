"""Keeps freed memory in the process during training, instead of returning it to the system.

A step frees tensors that the next one allocates again. By default glibc returns large ones to the
system in between, which fills them with zeros each time: a tenth of the time of a CNN on a CPU.

Rules: memory settings of the C library that the user has made stay as they are; after the training
the kept memory is returned, since exports and their verification run in other processes.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of `mallopt`, as in `malloc.h`, in bytes: the free memory that is kept at most, and the
size from which a block is mapped by the system, and returned to it when freed."""
LARGEST = 2**31 - 1
HIGHEST_MMAP_THRESHOLD = 2**25
"""The maximum of some releases of glibc, and the upper end of its dynamic threshold, which follows
the sizes of freed blocks: setting a size turns the dynamic threshold off."""
TOLD_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Variables by which a user sets these options, besides `GLIBC_TUNABLES`."""


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keeps freed memory in the process within the block; returns it afterwards.

    Nothing changes if the C library is not glibc, or if the user has set its options.
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
    """Returns the C library; None if it is not glibc."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
