"""Writes tensors of a pair that is kept to look at: their first values, as JSON has them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from flambeau.protocol.tensors import Array

Redacts = Callable[[str, str, str], bool]
"""True for a tensor whose values must not be kept: its model, its name, and its datatype."""

SHOWN_TENSORS = 16
SHOWN_VALUES = 64
"""First values of a tensor."""
SHOWN_BYTES = 500
"""Bytes of a text in JSON."""
SHOWN_NAME_BYTES = 200
MOST_SHOWN_BYTES = 12 * 2**10
"""Values of all tensors of one request or answer in JSON: a hundred pairs have 4 MB."""


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
    found, left_bytes = [], MOST_SHOWN_BYTES
    for name, datatype, array in tensors[:SHOWN_TENSORS]:
        values = None
        if not redacts(model, name, datatype):
            values = []
            for value in map(_plain, array.reshape(-1)[:SHOWN_VALUES].tolist()):
                left_bytes -= len(orjson.dumps(value)) + 1
                if left_bytes < 0:
                    break
                values.append(value)
        shape = list(array.shape)
        cut = _cut(name, SHOWN_NAME_BYTES)
        found.append({"name": cut, "datatype": datatype, "shape": shape, "values": values})
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _cut(value[:SHOWN_BYTES].decode("utf-8", "replace"), SHOWN_BYTES)
    if isinstance(value, str):
        return _cut(value, SHOWN_BYTES)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _cut(text: str, most_bytes: int) -> str:
    """Returns the first characters of a text, as many as JSON has within some bytes.

    A control character takes six bytes there, and each byte that is no UTF-8 three.
    """
    text = text[:most_bytes].encode("utf-8", "replace").decode()
    while (size_bytes := len(orjson.dumps(text))) > most_bytes + 2:
        text = text[: len(text) * most_bytes // size_bytes]
    return text
