"""Parses the usual form of a REST request's JSON straight into typed records.

In: the same as `strict_request.read_strictly`. Out: the same `RestRequest`, or one of `NOT_FAST`,
which only means that the strict parser must read it: that alone reports errors.

Rules: a name, type or value that is not plainly right is unusual. msgspec checks types while it
parses, so no list of numbers is iterated again: a boolean, null or object among the numbers never
gets here, which `tensors.packed` relies on.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from flambeau.protocol.tensors import MAX_RANK, TensorError, decode_raw
from services.gateway.admission import InputTensor
from services.gateway.artifact_preference import checked_preference
from services.gateway.edges.binary_texts import MAX_TEXTS_AT_ONCE_BYTES, Buffer
from services.gateway.edges.json_bodies.numbers import MIN_COUNTED_BYTES, has_slow_numbers
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.json_bodies.tensors import packed
from services.gateway.scheduling_parameters import checked_scheduling
from services.gateway.sequence_parameters import checked_sequence

NOT_FAST = (msgspec.MsgspecError, UnicodeDecodeError, TensorError)
"""Exceptions of the fast parser that leave a request to the strict one.

Any other is a bug: it must not end in a slower answer that hides it.
"""

_Leaf = int | float | str
_Data = list[_Leaf | list[_Leaf | list[_Leaf | list[_Leaf | list[_Leaf]]]]]
"""Flat, or nested up to five deep. A boolean matches no member of the union."""


class _Strict(Struct, gc=False, forbid_unknown_fields=True):
    """A record of the protocol; a field that is not named here is unusual."""


class _Parameters(Struct, gc=False, forbid_unknown_fields=True, frozen=True):
    """The `parameters` of a record; frozen, so that it can be a default."""


class _InputParameters(_Parameters, frozen=True):
    binary_data_size: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class _OutputParameters(_Parameters, frozen=True):
    binary_data: bool | UnsetType = UNSET
    classification: Annotated[int, Meta(ge=0)] = 0


class _RequestParameters(_Parameters, frozen=True):
    binary_data_output: bool = False
    timeout: int = 0
    priority: int = 0
    artifact: str = ""
    accuracy: str = ""
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False


_NOTHING = _RequestParameters()


class _Input(_Strict):
    name: str
    datatype: str
    shape: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_RANK)]
    data: _Data | UnsetType = UNSET
    parameters: _InputParameters = _InputParameters()


class _Output(_Strict):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Document(_Strict):
    """The JSON document of a request."""

    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] = []
    parameters: _RequestParameters = _NOTHING


_DECODE = msgspec.json.Decoder(_Document).decode


def read_fast(head: Buffer, binary: memoryview) -> RestRequest:
    """Reads a request of the usual form.

    Raises:
        NOT_FAST: it has another form.
        InvalidRequestError: its timeout or priority is out of range, or its artifact preference
            or its sequence is invalid.
    """
    if len(head) >= MIN_COUNTED_BYTES and has_slow_numbers(head):
        raise TensorError("numbers that the other parser reads faster")
    document = _DECODE(head)
    inputs = []
    position = 0
    for entry in document.inputs:
        size = entry.parameters.binary_data_size
        if (size is UNSET) is (entry.data is UNSET):
            raise TensorError("neither or both forms of data")
        if size is UNSET:
            array = packed(entry.datatype, entry.shape, entry.data)
        else:
            if size > MAX_TEXTS_AT_ONCE_BYTES and entry.datatype == "BYTES":
                raise TensorError("so many texts are split in slices")
            array = decode_raw(entry.datatype, entry.shape, binary[position : position + size])
            position += size
        inputs.append(InputTensor(name=entry.name, datatype=entry.datatype, array=array))
    if position != len(binary):
        raise TensorError("binary data that no input claims, or too little of it")
    if not document.outputs and document.parameters is _NOTHING:
        return RestRequest(id=document.id, inputs=inputs, is_simple=not document.id)
    return _with_parameters(document, inputs)


def _with_parameters(document: _Document, inputs: list[InputTensor]) -> RestRequest:
    outputs, asked = document.outputs, document.parameters
    timeout_us = priority = 0
    if asked.timeout or asked.priority:
        timeout_us, priority = checked_scheduling(asked.timeout, asked.priority)
    preference = None
    if asked.artifact or asked.accuracy:
        preference = checked_preference(asked.artifact, asked.accuracy)
    sequence = checked_sequence(asked.sequence_id, asked.sequence_start, asked.sequence_end)
    if not outputs:
        return RestRequest(
            id=document.id,
            inputs=inputs,
            binary_by_default=asked.binary_data_output,
            timeout_us=timeout_us,
            priority=priority,
            preference=preference,
            sequence=sequence,
            is_simple=not (document.id or asked.binary_data_output),
        )
    return RestRequest(
        id=document.id,
        inputs=inputs,
        outputs=[output.name for output in outputs],
        binary_by_default=asked.binary_data_output,
        binary={o.name: c for o in outputs if (c := o.parameters.binary_data) is not UNSET},
        classes={o.name: count for o in outputs if (count := o.parameters.classification)},
        timeout_us=timeout_us,
        priority=priority,
        preference=preference,
        sequence=sequence,
    )
