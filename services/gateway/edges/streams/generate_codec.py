"""Reads and writes the JSON of `generate`: one object, whose keys are inputs and parameters.

In: a body such as `{"text_input": "hello", "parameters": {"temperature": 0.5}}`. Out: a
`RestRequest`, read as that of `infer`; and an object with the name of each output.

Source: Triton's generate extension. A key that is an input's name is a tensor: a scalar, or a flat
or nested list; each other key is a parameter, as are those of the object `parameters`, unless they
are inputs. A shape that the model leaves free takes the elements in its last free dimension.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array, TensorError
from services.errors import InvalidRequestError
from services.gateway.edges.binary_texts import Buffer
from services.gateway.edges.json_bodies.spans import MASK_BYTES, outside_strings
from services.gateway.edges.json_bodies.strict_request import (
    RestRequest,
    parse_document,
    read_document,
)
from services.gateway.edges.json_bodies.strict_slices import MIN_LARGE_BYTES
from services.gateway.edges.json_bodies.tensors import from_json, is_large, json_pieces, to_json
from services.gateway.edges.raw_parts import Part
from services.gateway.sliced_work import Slices, at_once
from services.queueing.records import InferReply, Lane

MAX_MEMBERS = 8192
"""Most commas and brackets outside strings: parsing and checking these takes 1 to 2 ms."""
_MEMBER_MARKS = tuple(b",[{")
_NO_BINARY = memoryview(b"")


def read_generate(body: Buffer, signature: Signature) -> RestRequest | Slices[RestRequest]:
    """Reads a request; returns slices of the work if it is large.

    Raises:
        InvalidRequestError: it is invalid; the message says why.
        UnsupportedError: it asks for an extension this server does not offer.
    """
    if len(body) < MIN_LARGE_BYTES:
        return at_once(_read(body, signature))
    return _read_large(body, signature)


def _read_large(body: Buffer, signature: Signature) -> Slices[RestRequest]:
    members, in_string, escaped = 0, False, False
    text = memoryview(body)
    for position in range(0, len(text), MASK_BYTES):
        octets = np.frombuffer(text[position : position + MASK_BYTES], np.uint8)
        outside, in_string, escaped = outside_strings(octets, in_string, escaped)
        members += int(np.count_nonzero(np.isin(octets, _MEMBER_MARKS) & outside))
        if members > MAX_MEMBERS:
            raise InvalidRequestError(
                f"the JSON has more than {MAX_MEMBERS} members and lists, the limit of generate; "
                "send large tensors by infer"
            )
        yield
    return (yield from _read(body, signature))


def _read(body: Buffer, signature: Signature) -> Slices[RestRequest]:
    document = infer_document(parse_document(body), signature)
    return (yield from read_document(document, _NO_BINARY, _array))


def _array(datatype: str, shape: Sequence[int], data: Any) -> Slices[Array]:
    yield from ()
    return from_json(datatype, shape, data)


def infer_document(given: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    """Returns the document of `infer` with the same meaning.

    Raises:
        InvalidRequestError: a key occurs twice, or its value has no shape of its input.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    members = dict(given)
    if "parameters" not in specs and "parameters" in members:
        nested = members.pop("parameters")
        if not isinstance(nested, dict):
            raise InvalidRequestError("'parameters' must be an object of parameters and inputs")
        for name in nested.keys() & members.keys():
            raise InvalidRequestError(f"'{name:.200}' occurs twice, once in 'parameters'")
        members |= nested
    found: dict[str, Any] = {}
    if "id" not in specs and "id" in members:
        found["id"] = members.pop("id")
    inputs = [_input(specs[name], value) for name, value in members.items() if name in specs]
    found["inputs"] = inputs
    found["parameters"] = {name: one for name, one in members.items() if name not in specs}
    return found


def _input(spec: TensorSpec, value: Any) -> dict[str, Any]:
    data = value if isinstance(value, list) else [value]
    shape = _nesting(data)
    if len(shape) == 1:
        shape = _shaped(spec, shape[0])
    return {"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data}


def _nesting(data: list[Any]) -> list[int]:
    """Returns the lengths of nested lists along their first elements."""
    shape, level = [len(data)], data
    while level and isinstance(level[0], list):
        level = level[0]
        shape.append(len(level))
    return shape


def _shaped(spec: TensorSpec, count: int) -> list[int]:
    """Returns the shape of an input that takes so many elements."""
    shape, left = list(spec.shape), count
    for size in shape:
        if size > 0 and left % size == 0:
            left //= size
        elif size >= 0 and left:
            raise _does_not_fit(spec, count)
    for axis in reversed(range(len(shape))):
        if shape[axis] < 0:
            shape[axis], left = left, 1
    if left != 1 and count:
        raise _does_not_fit(spec, count)
    return shape


def _does_not_fit(spec: TensorSpec, count: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"input '{spec.name}' has {count} elements, which fit no shape {list(spec.shape)}; send "
        "as many as it takes, nest them, or use infer"
    )


def encode_generated(
    reply: InferReply, request: RestRequest, reserve: Callable[[int], None]
) -> Sequence[Part] | Slices[Sequence[Part]]:
    """Encodes an answer; returns slices of the work if it is large.

    Raises:
        InvalidRequestError: JSON cannot hold an output.
    """
    if any(map(is_large, reply.outputs.values())):
        return _encode(reply, request, reserve)
    return at_once(_encode(reply, request, reserve))


def _encode(
    reply: InferReply, request: RestRequest, reserve: Callable[[int], None]
) -> Slices[Sequence[Part]]:
    parts: list[Part] = [_start(reply.lane, reply.artifact, reply.degraded)]
    if request.id:
        parts += b',"id":', orjson.dumps(request.id)
    for name, array in reply.outputs.items():
        datatype = reply.datatypes[name]
        parts += b",", orjson.dumps(name), b":"
        try:
            if not is_large(array):
                text = to_json(name, datatype, array)
                parts.append(text[1:-1] if array.size == 1 else text)
                continue
            opening = b"[" if array.size > 1 else b""
            for piece in json_pieces(name, datatype, array):
                reserve(len(piece))
                parts += opening, piece
                opening = b","
                yield
            parts.append(b"]" if array.size > 1 else b"")
        except TensorError as error:
            why = str(error).partition(";")[0]
            raise InvalidRequestError(f"{why}; use infer, with binary data") from error
    parts.append(b"}")
    return [b"".join(parts)]


@lru_cache(maxsize=1024)
def _start(lane: Lane, artifact: str, degraded: bool) -> bytes:
    document = {"model_name": lane.model, "model_version": str(lane.version)}
    if artifact:
        document["artifact"] = artifact
    text = orjson.dumps(document | ({"degraded": True} if degraded else {}))
    return text[:-1]
