"""Checks for a GPU, reports its name and driver, and allocates page-locked memory for it."""

import math
from pathlib import Path

import numpy as np
import torch

from flambeau.protocol.tensors import Array
from services.errors import DeviceError
from services.inference.backends.device import Device


def check_gpu(device: Device) -> None:
    """Checks that a GPU is usable.

    Raises:
        DeviceError: torch has no CUDA, or no GPU of this number.
    """
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {device} was asked for, and torch {torch.__version__} finds no CUDA GPU here; "
            "install the driver and a CUDA build of torch, or serve on device cpu"
        )
    if device.index >= (count := torch.cuda.device_count()):
        raise DeviceError(f"there is no {device}; this machine's GPUs are cuda:0 to {count - 1}")


def gpu_name_and_driver(
    device: Device, version: Path = Path("/proc/driver/nvidia/version")
) -> tuple[str, str]:
    """Returns the GPU's name and its driver's version line; an empty string if unknown.

    Args:
        device: the GPU.
        version: file of the version of NVIDIA's driver on Linux.
    """
    there = torch.cuda.is_available() and device.index < torch.cuda.device_count()
    name = torch.cuda.get_device_name(device.index) if there else ""
    try:
        return name, version.read_text().splitlines()[0]
    except (OSError, IndexError):
        return name, ""


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Returns an array in page-locked memory, which a GPU reads by DMA; contents undefined.

    torch's host allocator rounds its size up to a power of two and caches freed blocks for reuse,
    so steady traffic locks no new pages.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    octets: Array = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return octets.view(dtype).reshape(shape)
