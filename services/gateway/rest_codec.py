"""Bytes of the REST edge to an `InferCall` and back: JSON and the binary tensor extension.

Source: Open Inference Protocol v2 "Inference", and Triton's binary tensor data extension. A body
is JSON alone; or, with the header `Inference-Header-Content-Length`, that many bytes of JSON and
then each binary input's bytes in order; or, with that header 0, the raw bytes of the only input.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from model_store.signature import Signature
from model_store.tensors import DATATYPES, Array, TensorError, decode_raw, encode_raw
from services.errors import InvalidRequestError
from services.gateway.admission import InferAnswer, InputTensor
from services.gateway.json_tensors import from_json, to_json
from services.gateway.refusals import naming_input, refuse_unsupported

HEADER_LENGTH = "inference-header-content-length"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRequest:
    """A decoded body: what to run, and how to write the answer."""

    id: str = ""
    inputs: Sequence[InputTensor]
    outputs: Sequence[str] = ()
    binary_by_default: bool = False
    binary: Mapping[str, bool] = field(default_factory=dict)
    """An output's own choice, which beats the default."""


@dataclass(frozen=True, slots=True)
class RestBody:
    """An encoded answer."""

    content: bytes
    json_length: int | None
    """Bytes of JSON before the binary data, or None when all is JSON."""


def decode(body: bytes, header_length: str | None, signature: Signature | None) -> RestRequest:
    """Reads a request body.

    Args:
        body: all of it, not compressed.
        header_length: value of `Inference-Header-Content-Length`, if given.
        signature: of the model named in the URL; only a raw body needs it.

    Raises:
        InvalidRequestError: whatever is wrong with it, in words.
        UnsupportedError: it asks for an extension this server does not offer.
    """
    length = _json_length(header_length, len(body))
    if length == 0:
        return _decode_raw_body(body, signature)
    document = _parse_json(body if length is None else body[:length])
    binary = memoryview(body)[len(body) if length is None else length :]
    parameters = _parameters(document, "the request")
    inputs = _decode_inputs(document, binary)
    names, choices = _requested_outputs(document)
    return RestRequest(
        id=_text(document.get("id", ""), "id"),
        inputs=inputs,
        outputs=names,
        binary_by_default=parameters.get("binary_data_output") is True,
        binary=choices,
    )


def encode(answer: InferAnswer, request: RestRequest) -> RestBody:
    """Writes an answer in the form the request asked for.

    Raises:
        InvalidRequestError: an output cannot be said in JSON and was not asked for as binary.
    """
    outputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, array in answer.outputs.items():
        datatype = answer.datatypes[name]
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if request.binary.get(name, request.binary_by_default):
            tail.append(encode_raw(datatype, array))
            output["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            output["data"] = _json_data(name, datatype, array)
        outputs.append(output)
    document: dict[str, Any] = {
        "model_name": answer.lane.model,
        "model_version": str(answer.lane.version),
        "outputs": outputs,
    }
    if request.id:
        document["id"] = request.id
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return RestBody(b"".join((head, *tail)), len(head) if tail else None)


def _json_data(name: str, datatype: str, array: Array) -> Array | list[str]:
    try:
        return to_json(name, datatype, array)
    except TensorError as error:
        raise InvalidRequestError(str(error)) from error


def _json_length(value: str | None, body_length: int) -> int | None:
    if value is None:
        return None
    length = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else -1
    if not 0 <= length <= body_length:
        raise InvalidRequestError(
            f"inference header size should be in range (0, {body_length}), got: {value[:40]}"
        )
    return length


def _parse_json(data: bytes) -> dict[str, Any]:
    if not data:
        raise InvalidRequestError("the body is empty; send a JSON object with 'inputs'")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequestError("the body must be a JSON object with 'inputs'")
    return document


def _decode_raw_body(body: bytes, signature: Signature | None) -> RestRequest:
    """A body that is one tensor: batch of one, its shape from the signature."""
    if signature is None or len(signature.inputs) != 1:
        raise InvalidRequestError("a raw body needs a model with exactly one input")
    spec = signature.inputs[0]
    shape = [1, *spec.shape[1:]]
    if shape.count(-1) > 1:
        raise InvalidRequestError(f"a raw body cannot tell the shape of {list(spec.shape)}")
    if -1 in shape:
        unit = DATATYPES[spec.datatype].itemsize * math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = len(body) // unit if unit else 0
    with naming_input(spec.name):
        array = decode_raw(spec.datatype, shape, body)
    tensor = InputTensor(name=spec.name, datatype=spec.datatype, array=array)
    return RestRequest(inputs=[tensor], binary_by_default=True)


def _decode_inputs(document: Mapping[str, Any], binary: memoryview) -> list[InputTensor]:
    inputs: list[InputTensor] = []
    position = 0
    for entry in _objects(document, "inputs", required=True):
        name = _text(entry.get("name"), "name of an input")
        datatype = _text(entry.get("datatype"), f"datatype of input '{name}'")
        shape = _shape(entry.get("shape"), name)
        size = _binary_size(entry, name)
        with naming_input(name):
            if size is None:
                array = from_json(datatype, shape, entry.get("data"))
            else:
                array = decode_raw(datatype, shape, binary[position : position + size])
                position += size
        inputs.append(InputTensor(name=name, datatype=datatype, array=array))
    if position != len(binary):
        raise InvalidRequestError(
            f"the body has {len(binary)} bytes of binary data; its inputs claim {position}"
        )
    return inputs


def _binary_size(entry: Mapping[str, Any], name: str) -> int | None:
    """Bytes of an input's binary data, or None when its data is JSON."""
    size = _parameters(entry, f"input '{name}'").get("binary_data_size")
    if (size is None) == ("data" not in entry):
        raise InvalidRequestError(
            f"input '{name}' needs either 'data' or parameters.binary_data_size, and not both"
        )
    if size is not None and (type(size) is not int or size < 0):
        raise InvalidRequestError(f"input '{name}' has binary_data_size {size!r}; give its bytes")
    return size


def _requested_outputs(document: Mapping[str, Any]) -> tuple[list[str], dict[str, bool]]:
    names: list[str] = []
    choices: dict[str, bool] = {}
    for entry in _objects(document, "outputs", required=False):
        name = _text(entry.get("name"), "name of an output")
        names.append(name)
        choice = _parameters(entry, f"output '{name}'").get("binary_data")
        if choice is not None:
            choices[name] = choice is True
    return names, choices


def _objects(document: Mapping[str, Any], key: str, *, required: bool) -> list[dict[str, Any]]:
    if key not in document and not required:
        return []
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequestError(f"'{key}' is missing or not a list of objects")
    return entries


def _parameters(owner: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequestError(f"'parameters' of {what} must be an object")
    for key, value in parameters.items():
        if not isinstance(value, str | int | float | bool):
            raise InvalidRequestError(
                f"parameter '{key}' of {what} must be a string, a number or a boolean"
            )
    refuse_unsupported(parameters)
    return parameters


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"the {what} must be a string, and is {value!r:.60}")
    return value


def _shape(value: object, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(d) is int and 0 <= d < 2**63 for d in value):
        raise InvalidRequestError(
            f"the shape of input '{name}' must be a list of whole numbers, and is {value!r:.60}"
        )
    return value
