"""What is asked of a GPU: whether it is there, which it is, and page-locked memory for it."""

import math
from pathlib import Path

import numpy as np
import torch

from model_store.tensors import Array
from services.errors import DeviceError
from services.inference.backends.device import Device


def check_gpu(device: Device) -> None:
    """Says in words why a GPU cannot be used.

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
    """Which GPU it is, and by which driver; empty for what is not known.

    Args:
        device: the GPU.
        version: the file in which NVIDIA's driver says so on Linux.
    """
    there = torch.cuda.is_available() and device.index < torch.cuda.device_count()
    name = torch.cuda.get_device_name(device.index) if there else ""
    try:
        return name, version.read_text().splitlines()[0]
    except (OSError, IndexError):
        return name, ""


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array in page-locked memory, from which a GPU copies by itself; undefined contents.

    torch's host allocator rounds its size up to a power of two and keeps freed blocks for the
    next request, so steady traffic locks no new pages.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    octets: Array = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return octets.view(dtype).reshape(shape)
