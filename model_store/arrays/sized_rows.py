"""Resizes rows, to verify that a model and its artifacts accept every size of their signature.

In: rows as the data has them, and a signature with `dynamic` axes. Out: the same rows at the
smallest sizes, at the largest sizes, and between, with a different size along each axis.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array

Inputs = dict[str, Array]


def at_other_sizes(inputs: Mapping[str, Array], signature: Signature) -> list[Inputs]:
    """Cuts rows that are too long, and repeats the elements of rows that are too short.

    Args:
        inputs: arrays by name, each [rows, ...].
        signature: signature of rows, whose `dynamic` axes are resized; without any, returns [].
    """
    axes = [
        (name, axis)
        for name, found in signature.dynamic.items()
        for axis in found
        if name in inputs
    ]
    if not axes:
        return []
    found = []
    for shares in (
        [0.0] * len(axes),
        [1.0] * len(axes),
        [(place + 1) / (len(axes) + 1) for place in range(len(axes))],
    ):
        sized = dict(inputs)
        for (name, axis), share in zip(axes, shares, strict=True):
            low, high = signature.dynamic[name][axis]
            size = low + round((high - low) * share)
            sized[name] = resized(sized[name], axis, size)
        found.append(sized)
    return found


def resized(array: Array, axis: int, size: int) -> Array:
    """Cuts an axis that is too long, and repeats the elements of one that is too short."""
    # `mode="wrap"` of NumPy subtracts the length until an index fits: its time grows with size².
    found: Array = np.take(array, np.arange(size) % array.shape[axis], axis)
    return found
