"""Tensors in JSON: the `data` of the Open Inference Protocol's REST form.

In: the parsed `data`, nested or flat. Out: an array of the declared datatype and shape.
Also the reverse: an array to the text of its `data`. FP16 and BF16 have no JSON form.
"""

import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

import numpy as np
import orjson

from flambeau.protocol.tensors import (
    DATATYPES,
    Array,
    TensorError,
    as_bytes,
    element_count,
    object_array,
)
from services.gateway.edges.json_bodies.numbers_beyond import written

ELEMENTS_A_PIECE = 8192
"""Numbers of a response in a piece; writing these takes 0.2 to 0.5 ms."""
_TEXTS_A_PIECE = 2048
_TEXT_BYTES_A_PIECE = 256 * 1024
_WITHOUT_JSON = ("FP16", "BF16")
_ACCEPTED: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "i": ({int}, "whole numbers"),
    "u": ({int}, "whole numbers"),
    "f": ({int, float}, "numbers"),
    "O": ({str}, "strings"),
}
"""JSON types that a NumPy kind accepts, and their name in messages."""
_STRUCT_CODES = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip


def packed(datatype: str, shape: Sequence[int], data: Any) -> Array:
    """Returns the array of `from_json` for usual data in a third of the time; read-only.

    `struct` converts, rounds and checks count and range in one pass over the list: it accepts no
    string, list or fraction for an integer, and no float beyond FP32.

    Args:
        datatype: the protocol's name.
        shape: the full shape the request declares.
        data: lists of `int`, `float` and `str` only; a `bool` would pass for a number.

    Raises:
        TensorError: the data is not plainly right; `from_json` decides if it is wrong, and
            reports why.
    """
    if not data:
        raise TensorError("no elements")
    flat = _flatten_as(shape, data) if type(data[0]) is list else data
    count = math.prod(shape)
    code = _STRUCT_CODES.get(datatype)
    if code is None:
        if datatype != "BYTES":
            raise TensorError("no datatype")
        if len(flat) != count or {*map(type, flat)} != {str}:
            raise TensorError("not only texts, or not as many as the shape takes")
        return object_array([text.encode() for text in flat]).reshape(shape)
    try:
        octets = _packer(count, code)(*flat)
    except (struct.error, OverflowError):
        raise _out_of_range(datatype) from None
    return np.ndarray(shape, DATATYPES[datatype], octets)


def from_json(datatype: str, shape: Sequence[int], data: Any) -> Array:
    """Converts JSON data to an array.

    Args:
        datatype: the protocol's name.
        shape: the full shape the request declares.
        data: a list, nested as the shape or flat in row-major order.

    Raises:
        TensorError: the values are not of the datatype, do not fit it, or are too many or too few.
    """
    check_json_form(datatype)
    if not isinstance(data, list):
        raise TensorError(f"'data' is {_json_name(data)}; give a list")
    count = element_count(shape)
    flat, nesting = _flatten(data)
    if len(flat) != count:
        raise TensorError(f"'data' holds {len(flat)} elements; shape {list(shape)} takes {count}")
    # Without elements, nesting ends at the first dimension of 0: [2, 0, 3] is [[], []].
    expected = list(shape) if flat else list(shape)[: len(nesting)]
    if len(nesting) > 1 and nesting != expected:
        raise TensorError(f"'data' is nested as {nesting}; expected {list(shape)} or flat")
    return convert_flat(datatype, flat).reshape(shape)


def check_json_form(datatype: str) -> None:
    """Checks that tensors of a datatype can be written as JSON.

    Raises:
        TensorError: they cannot, or there is no such datatype.
    """
    if datatype not in DATATYPES:
        raise TensorError(
            f"datatype '{datatype:.60}' is unknown; use one of {', '.join(DATATYPES)}"
        )
    if datatype in _WITHOUT_JSON:
        raise TensorError(f"datatype {datatype} has no JSON form; send it as binary data")


def wanted_for(datatype: str) -> str:
    """Returns the name of a datatype's elements in JSON."""
    return _ACCEPTED[DATATYPES[datatype].kind][1]


def to_json(name: str, datatype: str, array: Array) -> bytes:
    """Returns the `data` of an output as JSON text, flat in row-major order.

    Raises:
        TensorError: JSON cannot hold the values; the message recommends binary data.
    """
    if datatype in _WITHOUT_JSON:
        raise _needs_binary(name, f"is {datatype}, which has no JSON form")
    if datatype == "BYTES":
        try:
            return orjson.dumps([as_bytes(element).decode() for element in array.ravel()])
        except UnicodeDecodeError:
            raise _needs_binary(name, "holds bytes that are not UTF-8") from None
    text = orjson.dumps(array.ravel(), option=orjson.OPT_SERIALIZE_NUMPY)
    # orjson writes null for NaN and infinity, the only token among numbers with an "n".
    if b"n" in text and array.dtype.kind == "f":
        return written(array)
    return text


def json_pieces(name: str, datatype: str, array: Array) -> Iterator[memoryview]:
    """Yields the text of `to_json` without brackets, in pieces of at most about 1 ms each.

    Commas go between the pieces.

    Raises:
        TensorError: as `to_json`.
    """
    flat = array.ravel()
    start = 0
    while start < flat.size:
        end = start + ELEMENTS_A_PIECE
        if datatype == "BYTES":
            sizes = [len(as_bytes(element)) for element in flat[start : start + _TEXTS_A_PIECE]]
            end = start + max(1, bisect_right(list(accumulate(sizes)), _TEXT_BYTES_A_PIECE))
        yield memoryview(to_json(name, datatype, flat[start:end]))[1:-1]
        start = end


def is_large(array: Array) -> bool:
    """Returns True if an array is large enough to be written in pieces."""
    if array.dtype.kind != "O":
        return array.size > ELEMENTS_A_PIECE
    if array.size > _TEXTS_A_PIECE:
        return True
    sizes = [len(element) for element in array.flat if isinstance(element, bytes | str)]
    return sum(sizes) > _TEXT_BYTES_A_PIECE


def _needs_binary(name: str, why: str) -> TensorError:
    return TensorError(
        f"output '{name}' {why}; ask for it as binary data (parameters.binary_data: true)"
    )


@lru_cache(maxsize=256)
def _packer(count: int, code: str) -> Callable[..., bytes]:
    return struct.Struct(f"<{count}{code}").pack


def _flatten_as(shape: Sequence[int], data: list[Any]) -> list[Any]:
    """Returns all leaves, in order, of data that is nested exactly as the shape.

    Raises:
        TensorError: it is not.
    """
    if not shape:
        raise TensorError("not nested as the shape")
    flat, length = data, shape[0]
    for inner_length in shape[1:]:
        if len(flat) != length or {*map(type, flat)} != {list}:
            raise TensorError("not nested as the shape")
        if length == 1:
            flat = flat[0]  # A batch of one; nothing has to be copied.
        elif {*map(len, flat)} == {inner_length}:
            flat = list(chain.from_iterable(flat))
        else:
            raise TensorError("ragged")
        length *= inner_length
    return flat


def _flatten(data: list[Any]) -> tuple[list[Any], list[int]]:
    """Returns all leaves in order, and the length of every level of nesting."""
    flat, nesting = data, [len(data)]
    while list in (types := set(map(type, flat))):
        lengths = set(map(len, flat)) if types == {list} else set()
        if len(lengths) != 1:
            raise TensorError(f"'data' is ragged at level {len(nesting)} of its nesting")
        nesting += lengths
        flat = list(chain.from_iterable(flat))
    return flat, nesting


def convert_flat(datatype: str, flat: list[Any]) -> Array:
    """Converts parsed elements to an array, which is read-only if it holds numbers.

    `struct` and NumPy get elements of known types only: they would convert true to 1 or "1" to 1.

    Raises:
        TensorError: one is not of the datatype, or outside its range.
    """
    dtype = DATATYPES[datatype]
    accepted, wanted = _ACCEPTED[dtype.kind]
    if wrong := set(map(type, flat)) - accepted:
        if dtype.kind in "iu" and any(type(x) is float and _is_beyond(x, dtype) for x in flat):
            raise _out_of_range(datatype)
        found = ", ".join(sorted({_json_name(x) for x in flat if type(x) in wrong}))
        raise TensorError(f"'data' must hold {wanted} for {datatype}; it holds {found}")
    if datatype == "BYTES":
        return object_array([text.encode() for text in flat])
    if datatype == "BOOL" or not flat:
        return np.array(flat, dtype)
    return packed(datatype, [len(flat)], flat)


def _is_beyond(value: float, dtype: np.dtype[Any]) -> bool:
    """Returns True if a float stands for a parsed integer beyond 64 bits."""
    return value <= -(2**63) or value >= (2**64 if dtype.kind == "u" else 2**63)


def _out_of_range(datatype: str) -> TensorError:
    return TensorError(f"'data' holds a number outside the range of {datatype}")


def _json_name(value: object) -> str:
    """Returns the JSON type of a value; an integer beyond 64 bits arrives as a float."""
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    is_fraction = isinstance(value, float) and abs(value) < 2**63
    return names.get(type(value), "a fraction" if is_fraction else "a number")
