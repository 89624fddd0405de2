"""Encodes tensors as a safetensors file; every stored NumPy array passes through here.

In: arrays by name, of any memory layout. Out: the bytes of a file that reads back as the same
arrays.

Rule: arrays are written in row-major order. `safetensors.numpy` writes memory in its layout
(0.8.0), so a transposed view would read back with its values in other positions.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.tensors import Array


def encode_tensors(tensors: Mapping[str, Array]) -> bytes:
    """Returns the bytes of a safetensors file with these tensors.

    Args:
        tensors: arrays by name, of any shape and strides, but not of strings or objects.

    Raises:
        SafetensorError: safetensors does not support an array's type.
    """
    from safetensors.numpy import save  # noqa: TID251

    # Not `np.ascontiguousarray`, which turns a 0-d array into a 1-d array.
    data: bytes = save({name: np.asarray(array, order="C") for name, array in tensors.items()})
    return data
