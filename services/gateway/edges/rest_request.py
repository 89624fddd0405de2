"""The JSON of a REST request to a `RestRequest`, every rule checked and every fault put in words.

This is the exact way: it takes any document the protocol allows. `usual_request.py` reads what
nearly every client sends in a quarter of the time, and leaves the rest to this.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from model_store.tensors import decode_raw
from services.errors import InvalidRequestError
from services.gateway.admission import InputTensor
from services.gateway.artifact_wish import ArtifactWish, checked_wish
from services.gateway.edges.json_tensors import from_json
from services.gateway.refusals import naming_input, refuse_unsupported
from services.gateway.scheduling import checked_scheduling

Buffer = bytes | bytearray | memoryview


class RestRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A decoded body: what to run, and how to write the answer."""

    id: str = ""
    inputs: Sequence[InputTensor]
    outputs: Sequence[str] = ()
    binary_by_default: bool = False
    binary: Mapping[str, bool] = {}
    """An output's own choice, which beats the default."""
    timeout_us: int = 0
    """How long the caller waits, from now; 0 for no limit of its own."""
    priority: int = 0
    """1 (first) to 10 (last); 0 for the default."""
    wish: ArtifactWish | None = None
    """Which artifact is to answer; None for the default one."""
    usual: bool = False
    """Whether it asks for nothing but its answer: no id, no choice of outputs or of their form."""


def read_exactly(head: Buffer, binary: memoryview) -> RestRequest:
    """Reads a request.

    Args:
        head: its JSON.
        binary: the bytes behind it; binary inputs view them.

    Raises:
        InvalidRequestError: whatever is wrong with it, in words.
        UnsupportedError: it asks for an extension this server does not offer.
    """
    document = _parse_json(head)
    parameters = _parameters(document, "the request")
    timeout_us, priority = checked_scheduling(
        parameters.get("timeout", 0), parameters.get("priority", 0)
    )
    wish = checked_wish(parameters.get("artifact", ""), parameters.get("accuracy", ""))
    inputs = _decode_inputs(document, binary)
    names, choices = _requested_outputs(document)
    return RestRequest(
        id=_text(document.get("id", ""), "id"),
        inputs=inputs,
        outputs=names,
        binary_by_default=parameters.get("binary_data_output") is True,
        binary=choices,
        timeout_us=timeout_us,
        priority=priority,
        wish=wish,
    )


def _parse_json(data: Buffer) -> dict[str, Any]:
    if not data:
        raise InvalidRequestError("the body is empty; send a JSON object with 'inputs'")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequestError("the body must be a JSON object with 'inputs'")
    return document


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
    refuse_unsupported(parameters, _as_is)
    return parameters


def _as_is(value: object) -> object:
    return value


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
