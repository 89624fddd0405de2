"""Finds the first row that keeps rows from forming one array. No torch.

In: a data set's rows of one tensor. Out: the array, or a message about a row.
"""

from collections.abc import Iterable

import numpy as np

from flambeau.protocol.tensors import Array
from training.errors import DataError


def array_of(rows: object, where: str) -> Array:
    """Returns rows as one array, [rows, ...].

    Args:
        rows: an array, or a sequence that makes one, such as a list of rows.
        where: name of the rows in messages.

    Raises:
        DataError: rows differ in shape; the message has the first that differs, and both shapes.
    """
    try:
        return np.ascontiguousarray(rows)
    except (ValueError, TypeError) as error:  # NumPy's own message names no row
        found = first_odd_row(rows) or str(error)
        raise DataError(f"{where}: {found}; give all rows one shape, or pad them") from error


def first_odd_row(rows: object) -> str | None:
    """Finds the first row that differs from row 0 in shape, or in being numeric.

    Returns:
        A message with that row and row 0; None if there is none.
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
    """Returns the shape of a row, True if it is numeric, and a message with shape and type."""
    try:
        array = np.asarray(row)
    except (ValueError, TypeError):  # the row itself has no single shape
        return "mixed", True, "of several shapes itself"
    numbers = array.dtype.kind in "biuf"
    kind = str(array.dtype)
    if not numbers and array.ndim == 0:
        kind = type(array.item()).__name__
    shape = str(list(array.shape))
    return shape, numbers, f"{kind} {shape}"
