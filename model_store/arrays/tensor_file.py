"""Tensors as the bytes of a safetensors file. Every NumPy array that is stored passes through here.

In: arrays by name, whatever way they lie in memory. Out: the bytes of a file that reads back as the
same arrays.

Rule kept here: arrays are written in row-major order. `safetensors.numpy` writes memory as it lies
(0.8.0), so that a transposed view would read back with its values in other places.
"""

from collections.abc import Mapping

import numpy as np

from model_store.tensors import Array


def encode_tensors(tensors: Mapping[str, Array]) -> bytes:
    """The file that holds these tensors.

    Args:
        tensors: by name, of any shape and strides; none of strings or objects.

    Raises:
        SafetensorError: an array's type is one that safetensors does not have.
    """
    from safetensors.numpy import save  # noqa: TID251

    # Not `np.ascontiguousarray`, which gives a number without dimensions one.
    data: bytes = save({name: np.asarray(array, order="C") for name, array in tensors.items()})
    return data
