"""Measures the memory that processes of this machine can still allocate, and its limits."""

from collections.abc import Iterator
from pathlib import Path

GIB = 2**30
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_LIMIT_FILES = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
"""Folder and file of the limit, in cgroup v2 and in cgroup v1."""


def free_bytes() -> int:
    """Returns the bytes that processes can still allocate without swapping, at most."""
    return min([available_bytes(), *control_group_limits()])


def lack_of_memory(size_bytes: int) -> str | None:
    """Returns a text with both figures if so many bytes are not free; None if they are."""
    free = free_bytes()
    if size_bytes <= free:
        return None
    return f"takes {size_bytes / GIB:,.1f} GiB of memory, and {free / GIB:,.1f} GiB are free"


def control_group_limits(
    membership: Path = Path("/proc/self/cgroup"), root: Path = _CONTROL_GROUPS
) -> Iterator[int]:
    """Yields the memory limits of this process's control group and of its parents, in bytes.

    Source: cgroups(7) for the lines of `membership`; the kernel's cgroup-v1 and cgroup-v2.

    Args:
        membership: file with the groups of this process.
        root: mount point of control groups; inside a container its own group is the root.
    """
    groups = [line.split(":", 2)[2] for line in membership.read_text().splitlines()]
    for controller, file in _LIMIT_FILES:
        top = root / controller
        folders = {folder for group in groups for folder in _upwards(top, group)}
        for folder in sorted(folders):
            # Without a limit the file says "max" in version 2, and the root has no file.
            if (path := folder / file).is_file() and (text := path.read_text().strip()).isdecimal():
                yield int(text)


def _upwards(top: Path, group: str) -> Iterator[Path]:
    folder = top / group.strip("/")
    yield folder
    while folder != top:
        folder = folder.parent
        yield folder


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Returns the bytes that the machine's processes can still allocate.

    Source: proc(5).

    Args:
        meminfo: file with the machine's memory.

    Raises:
        RuntimeError: the kernel is older than 3.14, and does not report it.
    """
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{meminfo} has no MemAvailable; flambeau needs Linux 3.14 or newer")
