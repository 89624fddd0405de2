"""Tensors in JSON: the `data` of the Open Inference Protocol's REST form.

In: what orjson made of `data`, nested or flat. Out: an array of the declared datatype and shape;
and back. FP16 and BF16 have no JSON form, and neither do NaN and infinity.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from model_store.tensors import DATATYPES, Array, TensorError, as_bytes, element_count, object_array

_WITHOUT_JSON = ("FP16", "BF16")
_ACCEPTED: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "i": ({int}, "whole numbers"),
    "u": ({int}, "whole numbers"),
    "f": ({int, float}, "numbers"),
    "O": ({str}, "strings"),
}
"""JSON types a NumPy kind takes, and how to call them."""


def from_json(datatype: str, shape: Sequence[int], data: Any) -> Array:
    """Makes an array of JSON data.

    Args:
        datatype: the protocol's name.
        shape: the full shape the request declares.
        data: a list, nested as the shape or flat in row-major order.

    Raises:
        TensorError: the values are not of the datatype, do not fit it, or are too many or too few.
    """
    if datatype not in DATATYPES:
        raise TensorError(f"datatype '{datatype}' is unknown; use one of {', '.join(DATATYPES)}")
    if datatype in _WITHOUT_JSON:
        raise TensorError(f"datatype {datatype} has no JSON form; send it as binary data")
    if not isinstance(data, list):
        raise TensorError(f"'data' is {_json_name(type(data))}; give a list")
    count = element_count(shape)
    flat, nesting = _flatten(data)
    if len(flat) != count:
        raise TensorError(f"'data' holds {len(flat)} elements; shape {list(shape)} takes {count}")
    # Without elements, nesting ends at the first dimension of 0: [2, 0, 3] is [[], []].
    expected = list(shape) if flat else list(shape)[: len(nesting)]
    if len(nesting) > 1 and nesting != expected:
        raise TensorError(f"'data' is nested as {nesting}; expected {list(shape)} or flat")
    return _convert(datatype, flat).reshape(shape)


def to_json(name: str, datatype: str, array: Array) -> Array | list[str]:
    """The `data` of an output, flat in row-major order, as orjson can write it.

    Raises:
        TensorError: JSON cannot hold the values; the message says to ask for binary data.
    """
    advice = f"output '{name}' {{}}; ask for it as binary data (parameters.binary_data: true)"
    if datatype in _WITHOUT_JSON:
        raise TensorError(advice.format(f"is {datatype}, which has no JSON form"))
    if datatype == "BYTES":
        try:
            return [as_bytes(element).decode() for element in array.ravel()]
        except UnicodeDecodeError:
            raise TensorError(advice.format("holds bytes that are not UTF-8")) from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise TensorError(advice.format("holds NaN or infinity, which JSON cannot say"))
    return np.ascontiguousarray(array).ravel()


def _flatten(data: list[Any]) -> tuple[list[Any], list[int]]:
    """All leaves in order, and the length of every level of nesting."""
    flat, nesting = data, [len(data)]
    while list in (types := set(map(type, flat))):
        lengths = set(map(len, flat)) if types == {list} else set()
        if len(lengths) != 1:
            raise TensorError(f"'data' is ragged at level {len(nesting)} of its nesting")
        nesting += lengths
        flat = list(chain.from_iterable(flat))
    return flat, nesting


def _convert(datatype: str, flat: list[Any]) -> Array:
    """NumPy is given one known type only: left to guess, it would turn 1.5 into 1 or "1" into 1."""
    dtype = DATATYPES[datatype]
    accepted, wanted = _ACCEPTED[dtype.kind]
    if wrong := set(map(type, flat)) - accepted:
        found = ", ".join(sorted(map(_json_name, wrong)))
        raise TensorError(f"'data' must hold {wanted} for {datatype}; it holds {found}")
    if datatype == "BYTES":
        return object_array([text.encode() for text in flat])
    try:
        if dtype.kind != "f":
            return np.array(flat, dtype)
        with np.errstate(over="raise"):
            return np.array(flat, np.float64).astype(dtype)
    except (OverflowError, FloatingPointError):
        raise TensorError(f"'data' holds a number outside the range of {datatype}") from None


def _json_name(found: type) -> str:
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(found, "a fraction" if found is float else "a number")
