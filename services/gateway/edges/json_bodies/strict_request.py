"""Parses the JSON of a REST request to a `RestRequest`; checks every rule and reports every error.

The strict parser accepts any document that the protocol allows. An optional field may be null
too, as clients generated from a schema write it. `fast_request.py` reads the usual form in a
quarter of the time, and leaves the rest to this parser.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

from flambeau.protocol.tensors import Array
from services.errors import InvalidRequestError
from services.gateway.admission import InputTensor
from services.gateway.artifact_preference import ArtifactPreference, checked_preference
from services.gateway.edges.binary_texts import Buffer, Reserve, raw_array, reserved_bytes
from services.gateway.edges.json_bodies.numbers_beyond import parsed
from services.gateway.edges.json_bodies.tensors import from_json
from services.gateway.refusals import naming_input, refuse_unsupported
from services.gateway.scheduling_parameters import checked_scheduling
from services.gateway.sequence_parameters import checked_sequence
from services.gateway.shared_regions.regions import (
    RegionPart,
    RegionUse,
    take_part,
    without_region,
)
from services.gateway.sliced_work import Slices, at_once
from services.gateway.triton.classes import PARAMETER, checked_count
from services.queueing.records import SequenceStep

_A_SLICE = 64
"""Inputs or outputs in a slice; each takes some 10 µs."""


class RestRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A decoded body: the inference, and the form of its response."""

    id: str = ""
    inputs: Sequence[InputTensor]
    outputs: Sequence[str] = ()
    binary_by_default: bool = False
    binary: Mapping[str, bool] = {}
    """An output's own choice, which overrides the default."""
    classes: Mapping[str, int] = {}
    """The number of classes that are wanted in place of an output."""
    timeout_us: int = 0
    """The caller's timeout, from now; 0 for no limit of its own."""
    priority: int = 0
    """1 (first) to 10 (last); 0 for the default."""
    preference: ArtifactPreference | None = None
    """The requested artifact; None for the default one."""
    sequence: SequenceStep | None = None
    """Place in a sequence; None for a request by itself."""
    is_simple: bool = False
    """True for a request without an id or a choice of outputs or of their form."""
    regions: RegionUse | None = None
    """Shared memory for its outputs; None for none."""
    parameters: Mapping[str, Any] = {}
    """Its parameters, if some are not the protocol's."""


def read_strictly(head: Buffer, binary: memoryview) -> RestRequest:
    """Reads a request.

    Args:
        head: its JSON.
        binary: the bytes behind it; binary inputs view them.

    Raises:
        InvalidRequestError: it is invalid; the message says why.
        UnsupportedError: it asks for an extension this server does not offer.
    """
    return at_once(read_document(parse_document(head), binary, _array_at_once))


ArrayOf = Callable[[str, Sequence[int], Any], Slices[Array]]
"""Makes an array of a datatype, a shape and the document's `data`.

Raises:
    ValueError: the elements do not match the datatype or shape.
    ServingError: they cannot be read.
"""
Check = Callable[[Sequence[tuple[str, str, tuple[int, ...]]]], object]
"""Checks names, datatypes and shapes of inputs against the model.

Raises:
    ServingError: they do not match.
"""


def parse_document(data: Buffer) -> dict[str, Any]:
    """Parses the JSON of a request.

    Raises:
        InvalidRequestError: it is not a JSON object.
    """
    if not data:
        raise InvalidRequestError("the body is empty; send a JSON object with 'inputs'")
    try:
        document = parsed(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequestError("the body must be a JSON object with 'inputs'")
    return document


def read_document(
    document: Mapping[str, Any],
    binary: memoryview,
    array_of: ArrayOf,
    check: Check | None = None,
    reserve: Reserve = int,
    regions: RegionUse | None = None,
) -> Slices[RestRequest]:
    """Reads the request from a parsed document.

    Args:
        document: the JSON of the request.
        binary: the bytes behind it; binary inputs view them.
        array_of: converter of a JSON input to an array.
        check: check of the inputs, called before any array is made.
        reserve: reservation, called before memory is taken for the elements of binary inputs, and
            once no array needs their bytes any more.
        regions: shared memory of inputs and outputs; None to refuse it.

    Raises:
        The same as `read_strictly`, and what `array_of`, `check` and `reserve` raise.
    """
    parameters = _parameters(document, "the request")
    timeout_us, priority = checked_scheduling(
        parameters.get("timeout", 0), parameters.get("priority", 0)
    )
    preference = checked_preference(parameters.get("artifact", ""), parameters.get("accuracy", ""))
    sequence = checked_sequence(
        parameters.get("sequence_id", 0),
        parameters.get("sequence_start", False),
        parameters.get("sequence_end", False),
    )
    request_id = _text(_given(document, "id", ""), "id")
    names, choices, classes = yield from _requested_outputs(document, regions)
    inputs = yield from _decode_inputs(document, binary, array_of, check, reserve, regions)
    return RestRequest(
        id=request_id,
        inputs=inputs,
        outputs=names,
        binary_by_default=parameters.get("binary_data_output") is True,
        binary=choices,
        classes=classes,
        timeout_us=timeout_us,
        priority=priority,
        preference=preference,
        sequence=sequence,
        regions=regions if regions is not None and regions.outputs else None,
        parameters=parameters,
    )


def _array_at_once(datatype: str, shape: Sequence[int], data: Any) -> Slices[Array]:
    yield from ()
    return from_json(datatype, shape, data)


class _Wanted(NamedTuple):
    """One input before its array is made."""

    name: str
    datatype: str
    shape: list[int]
    data: Any
    binary_size: int | None
    part: RegionPart | None


def _decode_inputs(
    document: Mapping[str, Any],
    binary: memoryview,
    array_of: ArrayOf,
    check: Check | None,
    reserve: Reserve,
    regions: RegionUse | None,
) -> Slices[list[InputTensor]]:
    wanted: list[_Wanted] = []
    for entry in _objects(document, "inputs", required=True):
        wanted.append(_wanted(entry, regions is not None))
        if len(wanted) % _A_SLICE == 0:
            yield
    if check is not None:
        check([(one.name, one.datatype, tuple(one.shape)) for one in wanted])
        yield
    inputs: list[InputTensor] = []
    position = 0
    for one in wanted:
        with naming_input(one.name):
            if one.part is not None:
                assert regions is not None
                data = yield from regions.read(one.part, one.datatype, one.shape, reserve)
                array = yield from raw_array(one.datatype, one.shape, data, reserve)
                del data  # an array of BYTES is a copy
                reserve(-reserved_bytes(one.datatype, one.part.byte_size))
            elif one.binary_size is None:
                array = yield from array_of(one.datatype, one.shape, one.data)
            else:
                end = position + one.binary_size
                array = yield from raw_array(one.datatype, one.shape, binary[position:end], reserve)
                position = end
        inputs.append(InputTensor(name=one.name, datatype=one.datatype, array=array))
        if len(inputs) % _A_SLICE == 0:
            yield
    if position != len(binary):
        raise InvalidRequestError(
            f"the body has {len(binary)} bytes of binary data; its inputs claim {position}"
        )
    if all(one.datatype == "BYTES" for one in wanted if one.binary_size):
        reserve(-sum(reserved_bytes("BYTES", one.binary_size or 0) for one in wanted))
    return inputs


def _wanted(entry: Mapping[str, Any], with_regions: bool) -> _Wanted:
    name = _text(entry.get("name"), "name of an input")
    datatype = _text(entry.get("datatype"), f"datatype of input '{name:.200}'")
    shape = _shape(entry.get("shape"), name)
    what = f"input '{name:.200}'"
    parameters, part = (
        _with_region(entry, what) if with_regions else (_parameters(entry, what), None)
    )
    size = None
    if part is None:
        size = _binary_size(entry, name, parameters)
    elif entry.get("data") is not None or "binary_data_size" in parameters:
        raise InvalidRequestError(f"{what} is in shared memory, and has other data, too; send one")
    return _Wanted(name, datatype, shape, entry.get("data"), size, part)


def _with_region(
    entry: Mapping[str, Any], what: str
) -> tuple[Mapping[str, Any], RegionPart | None]:
    """Returns the parameters of a tensor, and its place in shared memory."""
    given = _given(entry, "parameters", {})
    if not isinstance(given, dict):
        return _parameters(entry, what), None
    part = take_part(given, what)
    return _parameters({"parameters": without_region(given)}, what), part


def _binary_size(entry: Mapping[str, Any], name: str, parameters: Mapping[str, Any]) -> int | None:
    """Returns the bytes of an input's binary data, or None when its data is JSON."""
    size = parameters.get("binary_data_size")
    if (size is None) == (entry.get("data") is None):
        raise InvalidRequestError(
            f"input '{name:.200}' needs either 'data' or parameters.binary_data_size, and not both"
        )
    if size is not None and (type(size) is not int or size < 0):
        raise InvalidRequestError(
            f"input '{name:.200}' has binary_data_size {_shown(size)}; give its bytes"
        )
    return size


def _requested_outputs(
    document: Mapping[str, Any], regions: RegionUse | None
) -> Slices[tuple[list[str], dict[str, bool], dict[str, int]]]:
    names: list[str] = []
    choices: dict[str, bool] = {}
    classes: dict[str, int] = {}
    for entry in _objects(document, "outputs", required=False):
        name = _text(entry.get("name"), "name of an output")
        names.append(name)
        what = f"output '{name:.200}'"
        if regions is None:
            parameters = _parameters(entry, what)
        else:
            parameters, part = _with_region(entry, what)
            if part is not None:
                regions.outputs[name] = part
        choice = parameters.get("binary_data")
        if choice is not None:
            choices[name] = choice is True
        if count := checked_count(parameters.get(PARAMETER, 0), name):
            classes[name] = count
        if len(names) % _A_SLICE == 0:
            yield
    return names, choices, classes


def _objects(document: Mapping[str, Any], key: str, *, required: bool) -> list[dict[str, Any]]:
    entries = document.get(key) if required else _given(document, key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequestError(f"'{key}' is missing or not a list of objects")
    return entries


def _parameters(owner: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = _given(owner, "parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequestError(f"'parameters' of {what} must be an object")
    for key, value in parameters.items():
        if not isinstance(value, str | int | float | bool):
            raise InvalidRequestError(
                f"parameter '{key:.200}' of {what} must be a string, a number or a boolean"
            )
    refuse_unsupported(parameters)
    return parameters


def _given(owner: Mapping[str, Any], key: str, default: Any) -> Any:
    """Returns an optional field; null counts as absent."""
    value = owner.get(key)
    return default if value is None else value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"the {what} must be a string, and is {_shown(value)}")
    return value


def _shape(value: object, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(d) is int and 0 <= d < 2**63 for d in value):
        raise InvalidRequestError(
            f"the shape of input '{name:.200}' must be a list of whole numbers from 0 to "
            f"{2**63 - 1}, and is {_shown(value)}"
        )
    return value


def _shown(value: object) -> str:
    """Formats a wrong value for a message. Lists may be nested deeper than `repr` can go."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        if any(isinstance(element, list | dict) for element in value[:20]):
            return "a list of lists or objects"
        value = value[:20]
    return "null" if value is None else f"{value!r:.60}"
