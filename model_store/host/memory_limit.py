"""Limits the memory of this process, and explains errors that the limit caused.

In: bytes in addition to the current usage. Out: a limit that the kernel enforces (`RLIMIT_DATA`,
setrlimit(2)); it counts allocated memory and not memory mapped from files.
"""

import resource
from pathlib import Path

KIB, GIB = 2**10, 2**30
_WORDS = ("allocate memory", "bad_alloc", "bad allocation")
"""Phrases in the errors of runtimes when an allocation fails."""


def limit_memory(more_bytes: int) -> None:
    """Limits this process and its children to `more_bytes` of further allocations, for good."""
    limit = _data_bytes() + more_bytes
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if most != resource.RLIM_INFINITY:  # the process was started with a limit
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def explained(error: Exception, text: str, limit_bytes: int) -> str:
    """Returns the text of an error, and that the limit was hit if that is the cause.

    Args:
        error: the error that was raised.
        text: its text.
        limit_bytes: the argument of `limit_memory`.
    """
    needed = f"it needed more than {limit_bytes / GIB:.1f} GiB of memory"
    if isinstance(error, MemoryError):
        return needed
    return f"{needed} ({text})" if tells_of_memory(text) else text


def tells_of_memory(text: str) -> bool:
    """Returns True if the text of an error of any type says that host memory ran out."""
    return any(words in text for words in _WORDS)


def _data_bytes() -> int:
    """Returns the bytes of this process that count against `RLIMIT_DATA`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * KIB
    return 0
