"""Rows that do not make one array: which of them is the first that differs. No torch.

In: what a data set gave as the rows of one tensor. Out: the array, or a row in words.
"""

from collections.abc import Iterable

import numpy as np

from model_store.tensors import Array
from training.errors import DataError


def array_of(rows: object, where: str) -> Array:
    """Rows as one array, [rows, ...].

    Args:
        rows: an array, or what makes one, such as a list of rows.
        where: names them in messages.

    Raises:
        DataError: they have several shapes; the message has the first that differs, and both.
    """
    try:
        return np.ascontiguousarray(rows)
    except (ValueError, TypeError) as error:  # NumPy's own names no row
        found = first_odd_row(rows) or str(error)
        raise DataError(f"{where}: {found}; give all rows one shape, or pad them") from error


def first_odd_row(rows: object) -> str | None:
    """The first row with another shape than row 0, or with no numbers where that has some.

    Returns:
        It, in words, beside row 0; None if there is none.
    """
    expected: tuple[str, bool] | None = None
    for place, row in enumerate(rows if isinstance(rows, Iterable) else ()):
        found = _shape_and_type(row)
        if expected is None:
            expected, first = found[:2], found[2]
        elif found[:2] != expected:
            return f"row {place} is {found[2]}, and row 0 is {first}"
    return None


def _shape_and_type(row: object) -> tuple[str, bool, str]:
    """The shape of a row, whether it is of numbers, and both in words."""
    try:
        array = np.asarray(row)
    except (ValueError, TypeError):  # it has no shape itself
        return "mixed", True, "of several shapes itself"
    numbers = array.dtype.kind in "biuf"
    kind = str(array.dtype)
    if not numbers and array.ndim == 0:
        kind = type(array.item()).__name__
    shape = str(list(array.shape))
    return shape, numbers, f"{kind} {shape}"
