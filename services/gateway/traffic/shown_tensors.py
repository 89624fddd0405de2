"""Writes tensors of a pair that is kept to look at: their first values, as JSON has them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.protocol.tensors import Array

Redacts = Callable[[str, str, str], bool]
"""True for a tensor whose values must not be kept: its model, its name, and its datatype."""

SHOWN_TENSORS = 16
SHOWN_VALUES = 64
"""First values of a tensor: a pair takes some KiB."""
SHOWN_CHARACTERS = 500


def shown(
    model: str,
    tensors: Sequence[tuple[str, str, Array]],
    *,
    redacts: Redacts,
) -> list[dict[str, Any]]:
    """Returns name, datatype, shape and first values of each tensor.

    Args:
        model: the model's name.
        tensors: name, datatype and array.
        redacts: True for a tensor whose values must not be kept.
    """
    found = []
    for name, datatype, array in tensors[:SHOWN_TENSORS]:
        values = None
        if not redacts(model, name, datatype):
            values = [_plain(value) for value in array.reshape(-1)[:SHOWN_VALUES].tolist()]
        shape = list(array.shape)
        found.append({"name": name, "datatype": datatype, "shape": shape, "values": values})
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value[:SHOWN_CHARACTERS].decode("utf-8", "replace")
    if isinstance(value, str):
        return value[:SHOWN_CHARACTERS]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
