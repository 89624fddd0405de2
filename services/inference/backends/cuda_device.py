"""What both CUDA backends ask of torch: whether a GPU is there, and page-locked memory for it."""

import math

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


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array in page-locked memory, from which a GPU copies by itself; undefined contents.

    torch's host allocator rounds its size up to a power of two and keeps freed blocks for the
    next request, so steady traffic locks no new pages.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    octets: Array = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    return octets.view(dtype).reshape(shape)
