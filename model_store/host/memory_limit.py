"""A limit on the memory of this process, and how a failure that it caused reads.

In: bytes beyond what the process has. Out: a limit the kernel keeps (`RLIMIT_DATA`, setrlimit(2)),
which counts what is allocated and not what is mapped from files.
"""

import resource
from pathlib import Path

KIB, GIB = 2**10, 2**30
_WORDS = ("allocate memory", "bad_alloc", "bad allocation")
"""What runtimes say when memory is not to be had."""


def limit_memory(more_bytes: int) -> None:
    """Lets this process, and those it starts, allocate so much beyond what it has; for good."""
    limit = _data_bytes() + more_bytes
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if most != resource.RLIM_INFINITY:  # whoever started it has set a limit already
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def explained(error: Exception, text: str, limit_bytes: int) -> str:
    """The text of an error, or that the limit was hit where that is what it comes from.

    Args:
        error: what was raised.
        text: what it says.
        limit_bytes: what `limit_memory` was given.
    """
    needed = f"it needed more than {limit_bytes / GIB:.1f} GiB of memory"
    if isinstance(error, MemoryError):
        return needed
    return f"{needed} ({text})" if tells_of_memory(text) else text


def tells_of_memory(text: str) -> bool:
    """Whether the text of an error, of whichever type, says that the host's memory ran out."""
    return any(words in text for words in _WORDS)


def _data_bytes() -> int:
    """What `RLIMIT_DATA` counts of this process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * KIB
    return 0
