"""Measures the memory that is used of a device, for the admission of models.

In: a device. Out: used bytes and total bytes. For a GPU they are the driver's numbers, for all
processes on it. For the CPU they are this process's resident memory, and the size that it can grow
to before the memory of the machine or of its control group (a container's limit) is exhausted.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from services.inference.backends.device import Device
from services.resident_memory import resident_bytes

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_LIMIT_FILES = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
"""Folder and file of the limit, in cgroup v2 and in cgroup v1."""


class DeviceMemory(NamedTuple):
    """Used and total memory, in bytes."""

    used_bytes: int
    total_bytes: int


def device_memory_bytes(device: Device) -> DeviceMemory:
    """Measures a device's memory now.

    Raises:
        RuntimeError: CUDA has no such GPU.
        ImportError: the device is a GPU, and torch is not installed.
    """
    if device.kind == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device.index)
        return DeviceMemory(total - free, total)
    used = resident_bytes(os.getpid())
    return DeviceMemory(used, min([used + available_bytes(), *control_group_limits()]))


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
