"""Rows at other sizes: what shows that a model and its artifacts take every size they say.

In: rows as the data has them, and a signature with `dynamic` axes. Out: the same rows at the
smallest sizes, at the largest and between, a different size along each axis.
"""

from collections.abc import Mapping

import numpy as np

from model_store.signature import Signature
from model_store.tensors import Array

Inputs = dict[str, Array]


def at_other_sizes(inputs: Mapping[str, Array], signature: Signature) -> list[Inputs]:
    """Cuts rows where they are too long, and repeats them where they are too short.

    Args:
        inputs: by name, each [rows, ...].
        signature: its `dynamic` axes take other sizes; without any, nothing is returned.
    """
    axes = [(name, axis) for name, found in signature.dynamic.items() for axis in found]
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
            sized[name] = np.take(sized[name], np.arange(size), axis, mode="wrap")
        found.append(sized)
    return found
