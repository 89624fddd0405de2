"""How much of a device's memory is taken, measured, for the admission of models.

In: a device. Out: bytes used and bytes there are. For a GPU the driver says so, for all
processes on it; for the CPU it is what this process has in RAM, and what it can come to before
the machine or its control group (a container's limit) has no more.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from services.inference.backends.device import Device
from services.resident_memory import resident_bytes

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_LIMIT_FILES = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
"""Folder and file of the limit, in version 2 of control groups and in version 1."""


class DeviceMemory(NamedTuple):
    """What is used, and the most that can be, in bytes."""

    used_bytes: int
    total_bytes: int


def device_memory_bytes(device: Device) -> DeviceMemory:
    """Measures a device's memory now.

    Raises:
        RuntimeError: CUDA does not know this GPU.
        ImportError: a GPU is asked about and torch is not installed.
    """
    if device.kind == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device.index)
        return DeviceMemory(total - free, total)
    used = resident_bytes(os.getpid())
    return DeviceMemory(used, min([used + _available_bytes(), *control_group_limits()]))


def control_group_limits(
    membership: Path = Path("/proc/self/cgroup"), root: Path = _CONTROL_GROUPS
) -> Iterator[int]:
    """The memory limits of this process's control group and of all groups it lies in, in bytes.

    Source: cgroups(7) for the lines of `membership`; the kernel's cgroup-v1 and cgroup-v2.

    Args:
        membership: which groups this process is in.
        root: where control groups are mounted; inside a container its own group is the root.
    """
    groups = [line.split(":", 2)[2] for line in membership.read_text().splitlines()]
    for controller, file in _LIMIT_FILES:
        top = root / controller
        folders = {folder for group in groups for folder in _upwards(top, group)}
        for folder in sorted(folders):
            # No limit is the word "max" in version 2, and no file at the very root.
            if (path := folder / file).is_file() and (text := path.read_text().strip()).isdecimal():
                yield int(text)


def _upwards(top: Path, group: str) -> Iterator[Path]:
    folder = top / group.strip("/")
    yield folder
    while folder != top:
        folder = folder.parent
        yield folder


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable; flambeau needs Linux 3.14 or newer")
