"""Large JSON requests of numbers, without a Python object for each number.

In: the same as `usual_request.read_usual`. Out: the same `RestRequest`, or one of `UNUSUAL`.

simdjson parses into memory of its own and hands out each tensor as one buffer; msgspec checks the
rest of the document as it does in `usual_request.py`. docs/adr/0003 has what that saves.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET
from simdjson import Array as JsonArray
from simdjson import Object as JsonObject
from simdjson import Parser

from model_store.tensors import DATATYPES, Array
from services.gateway.edges.rest_request import Buffer, RestRequest
from services.gateway.edges.usual_request import UsualDocument, request_of

MIN_LARGE_BYTES = 32 * 1024
"""Of JSON; much below, what simdjson saves on numbers is less than its objects cost."""

MAX_KEPT_BYTES = 1024 * 1024
"""Of JSON; the memory that a larger body takes to parse, some ten times its own, is given back."""

_PARSER = Parser()
"""Kept, since fresh memory for every body would cost as many page faults as simdjson saves."""
_BUFFERS: dict[str, Literal["d", "i", "u"]] = {
    "FP32": "d", "FP64": "d",
    "INT8": "i", "INT16": "i", "INT32": "i", "INT64": "i",
    "UINT8": "u", "UINT16": "u", "UINT32": "u", "UINT64": "u",
}  # fmt: skip
"""What simdjson makes of a tensor's numbers, 64 bits each; it refuses those of another type."""
_BRACKET = ord("[")
_WIDE = {"d": np.dtype("f8"), "i": np.dtype("i8"), "u": np.dtype("u8")}


def read_large(head: Buffer, binary: memoryview) -> RestRequest:
    """Reads a request whose data are numbers, many of them.

    Raises:
        UNUSUAL: it has other data, or anything in it is not plainly right.
        InvalidRequestError: its timeout or priority is out of range.
    """
    try:
        parser = _PARSER if len(head) <= MAX_KEPT_BYTES else Parser()
        parsed: Any = parser.parse(head)
    except RuntimeError as error:  # Nesting that is too deep; or another thread has the parser.
        raise ValueError(str(error)) from error
    fields = _fields(parsed)
    entries = [_fields(entry) for entry in fields.pop("inputs")]
    data = [entry.pop("data", UNSET) for entry in entries]
    fields["inputs"] = [_plain(entry) for entry in entries]
    document = msgspec.convert(_plain(fields), UsualDocument)
    brackets = 1 + len(entries) + int("outputs" in fields)
    for entry, values in zip(document.inputs, data, strict=True):
        entry.data = values
        if values is not UNSET:
            nested = isinstance(values[0], JsonArray)
            brackets += _brackets(values, entry.shape) if nested else 1
    # as_buffer() flattens, so numbers deeper than the shape would pass for its own.
    if brackets != np.count_nonzero(np.frombuffer(head, np.uint8) == _BRACKET):
        raise ValueError("brackets beyond those of regular nesting, or within a string")
    return request_of(document, binary, _array)


def _fields(parsed: Any) -> dict[str, Any]:
    """The members of an object, arrays and objects among them still simdjson's."""
    fields = {key: parsed[key] for key in parsed}
    if len(fields) != len(parsed):
        raise ValueError("a key occurs twice")
    return fields


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """The same, with Python's own lists and dictionaries for those of simdjson."""
    return {
        key: value.as_list() if isinstance(value, JsonArray)
        else value.as_dict() if isinstance(value, JsonObject)
        else value
        for key, value in fields.items()
    }  # fmt: skip


def _brackets(data: JsonArray, shape: Sequence[int]) -> int:
    """Opening brackets of data that is nested as the shape.

    Raises:
        ValueError: it is nested otherwise.
    """
    rows: list[Any] = [data]
    count = 1
    for level, length in enumerate(shape, 1):
        if {*map(type, rows)} != {JsonArray} or {*map(len, rows)} != {length}:
            raise ValueError("not nested as the shape")
        if level < len(shape):
            rows = [inner for row in rows for inner in row]
            count += len(rows)
    return count


def _array(datatype: str, shape: Sequence[int], data: JsonArray) -> Array:
    dtype, code = DATATYPES[datatype], _BUFFERS[datatype]
    wide = np.frombuffer(data.as_buffer(of_type=code), _WIDE[code])
    if wide.size != math.prod(shape):
        raise ValueError("the number of elements is not the shape's")
    with np.errstate(over="raise"):
        narrow = wide.astype(dtype, copy=False)
    if dtype.kind != "f" and (narrow != wide).any():
        raise OverflowError("an integer is outside the datatype's range")
    return narrow.reshape(shape)
