"""Compares two results for the same rows, which may differ by rounding. Pure NumPy."""

import numpy as np

from flambeau.protocol.tensors import Array


def gap(one: Array, other: Array, share: float) -> str | None:
    """Describes the difference of two results; None for rounding at most.

    Args:
        one: the first result.
        other: the second.
        share: share of the largest finite number, below which a difference is rounding.
    """
    if one.shape != other.shape:
        return f"is {list(one.shape)}, then {list(other.shape)}"
    if one.dtype.kind != "f":
        return None if np.array_equal(one, other) else "has other values"
    right, found = one.astype(np.float64), other.astype(np.float64)
    largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
    if np.allclose(right, found, rtol=0.0, atol=share * largest, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        gaps = np.abs(right - found)
    return f"differs by up to {gaps[np.isfinite(gaps)].max(initial=0.0):.3g}"
