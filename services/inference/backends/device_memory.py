"""Measures the memory that is used of a device, for the admission of models.

In: a device. Out: used bytes and total bytes. For a GPU they are the driver's numbers, for all
processes on it. For the CPU they are this process's resident memory, and the size that it can grow
to before the memory of the machine or of its control group (a container's limit) is exhausted.
"""

import os
from typing import NamedTuple

from flambeau.protocol.available_memory import available_bytes, control_group_limits
from services.inference.backends.device import Device
from services.resident_memory import resident_bytes


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
