"""Converts messages of the gRPC edge to an `InferCall` and back.

Source: Open Inference Protocol v2, gRPC. Tensors come as `raw_input_contents` (one entry an
input) or as typed `contents`, never both; the response takes the form of the request.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flambeau.protocol.tensors import (
    DATATYPES,
    Array,
    TensorError,
    decode_raw,
    element_count,
    encode_raw,
    object_array,
)
from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError
from services.gateway.admission import InputTensor
from services.gateway.artifact_preference import ArtifactPreference, checked_preference
from services.gateway.edges.binary_texts import (
    MAX_TEXTS_AT_ONCE_BYTES,
    Reserve,
    raw_array,
    reserved_bytes,
)
from services.gateway.edges.grpc_large_answer import (
    CONTENTS_FIELDS,
    is_large_message,
    message_parts,
    values,
)
from services.gateway.edges.raw_parts import Part
from services.gateway.edges.shared_memory.grpc_regions import InRegions
from services.gateway.refusals import naming_input, refuse_unsupported, unreadable_input
from services.gateway.scheduling_parameters import checked_scheduling
from services.gateway.sequence_parameters import checked_sequence
from services.gateway.sliced_work import Slices, at_once
from services.gateway.triton.classes import PARAMETER, Classes, checked_count
from services.gateway.triton.classification import classified, is_long
from services.queueing.records import InferReply, Lane, SequenceStep

_USUAL_ELEMENTS = 8192
"""Most elements of a response whose header is cached; for a larger one the header is cheap."""
Raw = bytes | memoryview | None
"""The raw data of an input, or None where its contents are in the message."""
_WIRE_TYPES = {
    "bool_contents": np.dtype(np.bool_),
    "int_contents": np.dtype("<i4"),
    "int64_contents": np.dtype("<i8"),
    "uint_contents": np.dtype("<u4"),
    "uint64_contents": np.dtype("<u8"),
    "fp32_contents": np.dtype("<f4"),
    "fp64_contents": np.dtype("<f8"),
}
"""protobuf's element type of each numeric field."""


def decode_inputs(
    request: pb.ModelInferRequest, raw: Sequence[Raw] | None = None
) -> list[InputTensor]:
    """Reads the tensors of a request.

    Args:
        request: the message.
        raw: its `raw_input_contents`, where they are not in the message; None for an input whose
            contents are.

    Raises:
        InvalidRequestError: they are invalid; the message says why.
        UnsupportedError: the request asks for an extension this server does not offer.
    """
    return [
        InputTensor(
            name=tensor.name,
            datatype=tensor.datatype,
            array=_typed_array(tensor) if data is None else _raw_array(tensor, data),
        )
        for tensor, data in _paired(request, raw)
    ]


def has_long_texts(request: pb.ModelInferRequest, raw: Sequence[Raw] | None = None) -> bool:
    """True if a request must be read in slices: it has long raw data of BYTES."""
    if raw is None:
        raw = request.raw_input_contents
    return any(
        data is not None and len(data) > MAX_TEXTS_AT_ONCE_BYTES and tensor.datatype == "BYTES"
        for tensor, data in zip(request.inputs, raw, strict=False)
    )


def decode_in_slices(
    request: pb.ModelInferRequest, raw: Sequence[Raw] | None, reserve: Reserve
) -> Slices[list[InputTensor]]:
    """Reads the same as `decode_inputs`, in slices.

    Args:
        request: as there.
        raw: as there.
        reserve: reservation of the memory of BYTES elements; also releases raw data outside of the
            message once no array views it.

    Raises:
        The same, and what `reserve` raises.
    """
    inputs = []
    paired = _paired(request, raw)
    for tensor, data in paired:
        if data is not None and tensor.datatype == "BYTES":
            _refuse_both(tensor)
            with naming_input(tensor.name):
                array = yield from raw_array("BYTES", list(tensor.shape), data, reserve)
        else:
            array = _typed_array(tensor) if data is None else _raw_array(tensor, data)
        inputs.append(InputTensor(name=tensor.name, datatype=tensor.datatype, array=array))
    if raw and all(tensor.datatype == "BYTES" for tensor in request.inputs):
        beside = (data for data in raw if isinstance(data, memoryview))
        reserve(-sum(reserved_bytes("BYTES", len(data)) for data in beside))
    return inputs


def asked_outputs(request: pb.ModelInferRequest) -> tuple[list[str], dict[str, int]]:
    """Returns the names of the requested outputs, and the number of classes wanted of each.

    No names mean all outputs.

    Raises:
        InvalidRequestError: the classification of an output is no number from 0 up.
        UnsupportedError: it asks for an extension this server does not offer.
    """
    outputs = request.outputs
    if not outputs:
        return [], {}  # iterating over an empty field takes 1 µs
    names, classes = [], {}
    for output in outputs:
        name, parameters = output.name, output.parameters
        names.append(name)
        if parameters:
            refuse_unsupported(parameters)
            if count := checked_count(_parameter(parameters, PARAMETER, 0), name):
                classes[name] = count
    return names, classes


class AskedParameters(NamedTuple):
    """The parameters of a request that are not about its tensors."""

    timeout_us: int = 0
    """The caller's timeout in microseconds from now, 0 for none."""
    priority: int = 0
    """1 (first) to 10 (last), 0 for the default."""
    preference: ArtifactPreference | None = None
    sequence: SequenceStep | None = None


_NOTHING_ASKED = AskedParameters()


def asked_parameters(request: pb.ModelInferRequest) -> AskedParameters:
    """Reads `timeout`, `priority`, `artifact`, `accuracy`, and those of a sequence.

    Numbers come as `int64_param` or `uint64_param`.

    Raises:
        InvalidRequestError: one has the wrong type or value, or two contradict each other.
    """
    parameters = request.parameters
    if not parameters:
        return _NOTHING_ASKED
    timeout_us, priority = checked_scheduling(
        _parameter(parameters, "timeout", 0), _parameter(parameters, "priority", 0)
    )
    return AskedParameters(
        timeout_us,
        priority,
        checked_preference(
            _parameter(parameters, "artifact", ""), _parameter(parameters, "accuracy", "")
        ),
        checked_sequence(
            _parameter(parameters, "sequence_id", 0),
            _parameter(parameters, "sequence_start", False),
            _parameter(parameters, "sequence_end", False),
        ),
    )


def encode_serialized(
    reply: InferReply,
    request: pb.ModelInferRequest | InRegions,
    reserve: Reserve,
    classes: Classes | None = None,
) -> bytes | Slices[list[Part]]:
    """Serialises the response of `encode`; returns slices of the work if it is large.

    The usual response, one raw output, takes a third of the time.

    Args:
        reply: the model's.
        request: the request that it answers.
        reserve: reservation of memory for a large response.
        classes: classes that are wanted in place of outputs.

    Raises:
        InvalidRequestError: there are too many classes.
    """
    if classes:
        if is_long(reply, classes):
            return _classified_parts(reply, request, reserve, classes)
        reply = at_once(classified(reply, classes, reserve))
    outputs = reply.outputs
    if len(outputs) == 1 and request.raw_input_contents and not request.id:
        ((name, array),) = outputs.items()
        datatype = reply.datatypes[name]
        if datatype != "BYTES" and 0 < array.size <= _USUAL_ELEMENTS:
            start = _start_of_one(
                reply.lane, reply.artifact, reply.degraded, name, datatype, array.shape
            )
            return start + encode_raw(datatype, array)
    if isinstance(request, InRegions):
        response, regions = _without_outputs(reply, request.message), request.regions
        return message_parts(response, _named(reply), reserve, typed=False, regions=regions)
    typed = _is_typed(reply, request)
    if not is_large_message(list(outputs.values()), typed=typed):
        return encode(reply, request).SerializeToString()
    response = _without_outputs(reply, request)
    return message_parts(response, _named(reply), reserve, typed=typed)


def _named(reply: InferReply) -> list[tuple[str, str, Array]]:
    return [(name, reply.datatypes[name], array) for name, array in reply.outputs.items()]


def encode_raw_always(
    reply: InferReply,
    request: pb.ModelInferRequest | InRegions,
    reserve: Reserve,
    classes: Classes | None = None,
) -> bytes | Slices[list[Part]]:
    """Does the same as `encode_serialized`, with raw outputs also for typed inputs, as Triton."""
    if not request.raw_input_contents and not isinstance(request, InRegions):
        request = pb.ModelInferRequest(id=request.id, raw_input_contents=[b""])
    return encode_serialized(reply, request, reserve, classes)


Encode = Callable[
    [InferReply, pb.ModelInferRequest | InRegions, Reserve, Classes | None],
    bytes | Slices[list[Part]],
]
"""Serialises a response, as `encode_serialized`."""


def _classified_parts(
    reply: InferReply, request: pb.ModelInferRequest | InRegions, reserve: Reserve, classes: Classes
) -> Slices[list[Part]]:
    reserve(sum(array.nbytes for array in reply.outputs.values()))
    encoded = encode_serialized((yield from classified(reply, classes, reserve)), request, reserve)
    return [encoded] if isinstance(encoded, bytes) else (yield from encoded)


@lru_cache(maxsize=1024)
def _start_of_one(
    lane: Lane, artifact: str, degraded: bool, name: str, datatype: str, shape: tuple[int, ...]
) -> bytes:
    """Returns a response up to its one output's bytes: `raw_output_contents` comes last."""
    zeros = np.zeros(shape, DATATYPES[datatype])
    reply = InferReply(
        lane=lane,
        outputs={name: zeros},
        datatypes={name: datatype},
        artifact=artifact,
        degraded=degraded,
        batch_rows=0,
        queue_s=0.0,
        execution_s=0.0,
    )
    request = pb.ModelInferRequest(raw_input_contents=[b""])
    return encode(reply, request).SerializeToString()[: -zeros.nbytes]


def encode(reply: InferReply, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    """Makes a response: raw unless the request had typed contents.

    Outputs without a typed form (FP16, BF16) make the whole response raw.
    """
    response = _without_outputs(reply, request)
    typed = _is_typed(reply, request)
    for name, array in reply.outputs.items():
        datatype = reply.datatypes[name]
        output = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if typed:
            getattr(output.contents, CONTENTS_FIELDS[datatype]).extend(values(datatype, array))
        else:
            response.raw_output_contents.append(encode_raw(datatype, array))
    return response


def _without_outputs(reply: InferReply, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(
        model_name=reply.lane.model, model_version=str(reply.lane.version), id=request.id
    )
    if reply.artifact:
        response.parameters["artifact"].string_param = reply.artifact
        if reply.degraded:
            response.parameters["degraded"].bool_param = True
    return response


def _is_typed(reply: InferReply, request: pb.ModelInferRequest) -> bool:
    return not request.raw_input_contents and all(
        reply.datatypes[name] in CONTENTS_FIELDS for name in reply.outputs
    )


def parameter_text(request: pb.ModelInferRequest, name: str) -> str:
    """Returns the text of a parameter of a request; empty if it has none of that name."""
    value = _parameter(request.parameters, name, None)
    return "" if value is None else str(value)


def _parameter(parameters: Mapping[str, pb.InferParameter], name: str, absent: object) -> object:
    """Returns a parameter's value, `absent` if it is missing, and None if it has no value."""
    return _value(parameters[name]) if name in parameters else absent


def _value(parameter: pb.InferParameter) -> object:
    """Returns the value of a parameter; None if it has none."""
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _paired(
    request: pb.ModelInferRequest, raw: Sequence[Raw] | None
) -> list[tuple[pb.ModelInferRequest.InferInputTensor, Raw]]:
    """Returns each input with its raw data, or None.

    Raises:
        InvalidRequestError: their numbers differ.
        UnsupportedError: the request asks for an extension this server does not offer.
    """
    refuse_unsupported(request.parameters)
    tensors = request.inputs
    if raw is None:
        raw = request.raw_input_contents
    if raw and len(raw) != len(tensors):  # before any is read: there may be thousands
        raise InvalidRequestError(
            f"raw_input_contents has {len(raw)} entries for {len(tensors)} inputs; "
            "give one each, in the same order"
        )
    # Slices are lists, whose iteration takes half the time of a repeated field's.
    paired = list(zip(tensors[:], raw[:] or [None] * len(tensors), strict=True))
    for tensor, _ in paired:
        refuse_unsupported(tensor.parameters)
    return paired


def _refuse_both(tensor: pb.ModelInferRequest.InferInputTensor) -> None:
    if tensor.HasField("contents"):
        raise InvalidRequestError(
            f"input '{tensor.name}' has contents while raw_input_contents is used; send one form"
        )


def _raw_array(tensor: pb.ModelInferRequest.InferInputTensor, data: bytes | memoryview) -> Array:
    _refuse_both(tensor)
    try:
        # A slice is a list: a repeated field makes an object of each number at each access.
        return decode_raw(tensor.datatype, tensor.shape[:], data)
    except ValueError as error:  # inlined: a context manager costs 3 µs
        raise unreadable_input(tensor.name, error) from error


def _typed_array(tensor: pb.ModelInferRequest.InferInputTensor) -> Array:
    datatype = tensor.datatype
    with naming_input(tensor.name):
        field = _contents_field(tensor)
        values = getattr(tensor.contents, field)
        count = element_count(tensor.shape)
        if len(values) != count:
            raise TensorError(
                f"contents.{field} holds {len(values)} elements; "
                f"shape {list(tensor.shape)} takes {count}"
            )
        if datatype == "BYTES":
            return object_array(list(values)).reshape(tensor.shape)
        array = np.array(values, _WIRE_TYPES[field])
        return _narrowed(array, field, datatype).reshape(tensor.shape)


def _narrowed(array: Array, field: str, datatype: str) -> Array:
    """Converts the numbers of a field to their datatype, which may be narrower.

    NumPy would wrap those that do not fit if protobuf returns a buffer in place of numbers, as it
    does from version 7 on.

    Raises:
        TensorError: a number does not fit.
    """
    dtype = DATATYPES[datatype]
    if array.dtype == dtype:
        return array
    limits = np.iinfo(dtype.str)
    for found in (array.min(), array.max()) if array.size else ():
        if not limits.min <= found <= limits.max:
            raise TensorError(
                f"contents.{field} holds {found}; {datatype} takes {limits.min} to {limits.max}"
            )
    return array.astype(dtype)


def _contents_field(tensor: pb.ModelInferRequest.InferInputTensor) -> str:
    """Returns the one field a typed tensor must use.

    Raises:
        TensorError: the datatype is unknown or has none, or another field is filled.
    """
    if tensor.datatype not in DATATYPES:
        raise TensorError(
            f"datatype '{tensor.datatype}' is unknown; use one of {', '.join(DATATYPES)}"
        )
    field = CONTENTS_FIELDS.get(tensor.datatype)
    if field is None:
        raise TensorError(f"datatype {tensor.datatype} travels only in raw_input_contents")
    others = [used.name for used, _ in tensor.contents.ListFields() if used.name != field]
    if others:
        raise TensorError(f"contents.{others[0]} is filled; {tensor.datatype} goes into {field}")
    return field
