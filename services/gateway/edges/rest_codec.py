"""Decodes REST bodies to a `RestRequest`, encodes an `InferReply`: JSON and binary tensors.

Source: Open Inference Protocol v2 "Inference", and Triton's binary tensor data extension. A body
is JSON alone; or, with the header `Inference-Header-Content-Length`, that many bytes of JSON and
then each binary input's bytes in order; or, with that header 0, the raw bytes of the only input.

Copies: binary inputs view the body; outputs are copied once, large binary ones never.
"""

import math
from functools import lru_cache

import msgspec
import orjson

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import DATATYPES, Array, TensorError
from services.errors import InvalidRequestError
from services.gateway.admission import InputTensor
from services.gateway.edges.binary_texts import Buffer, Reserve, raw_array, reserved_bytes
from services.gateway.edges.json_bodies.fast_request import NOT_FAST, read_fast
from services.gateway.edges.json_bodies.strict_request import (
    Check,
    RestRequest,
    read_strictly,
)
from services.gateway.edges.json_bodies.strict_slices import MIN_LARGE_BYTES, read_in_slices
from services.gateway.edges.json_bodies.tensors import (
    ELEMENTS_A_PIECE,
    is_large,
    json_pieces,
    to_json,
)
from services.gateway.edges.raw_parts import MIN_VIEWED_BYTES, raw_parts
from services.gateway.refusals import naming_input
from services.gateway.shared_regions.regions import RegionPart, RegionUse
from services.gateway.sliced_work import Slices, at_once
from services.gateway.triton.classes import Classes
from services.gateway.triton.classification import classified, is_long
from services.queueing.records import InferReply, Lane

HEADER_LENGTH = "inference-header-content-length"
BLOCK_BYTES = 256 * 1024
"""Pieces of a large response are joined up to this size: few buffers, no full copy."""
_NO_BINARY = memoryview(b"")


class RestBody(msgspec.Struct, frozen=True, gc=False):
    """An encoded response."""

    parts: list[bytes | memoryview]
    """Buffers to write, in order, none empty; memoryviews are of the response's own arrays."""
    json_length: int | None
    """Bytes of JSON before the binary data, or None when all is JSON."""

    @property
    def length(self) -> int:
        """Size of the whole body in bytes."""
        return sum(map(len, self.parts))


def decode(
    body: Buffer,
    header_length: str | None,
    signature: Signature | None,
    check: Check | None = None,
    reserve: Reserve = int,
    regions: RegionUse | None = None,
) -> RestRequest | Slices[RestRequest]:
    """Reads a request body; returns slices of the work if it is large.

    Args:
        body: whole body, uncompressed; it must not change any more, since binary inputs view it.
        header_length: value of `Inference-Header-Content-Length`, if given.
        signature: signature of the model named in the URL; only a raw body needs it.
        check: check of the inputs of a large body against the model.
        reserve: reservation of memory for the inputs of a large body.
        regions: shared memory of inputs and outputs; None to refuse it.

    Raises:
        InvalidRequestError: it is invalid; the message says why.
        UnsupportedError: it asks for an extension this server does not offer.
    """
    if header_length is None:
        if len(body) < MIN_LARGE_BYTES and regions is None:
            return decode_json(body)
        return read_in_slices(body, _NO_BINARY, check, reserve, regions)
    length = _json_length(header_length, len(body))
    if length == 0:
        raw = _decode_raw_body(body, signature, reserve)
        return raw if len(body) >= MIN_LARGE_BYTES else at_once(raw)
    view = memoryview(body)
    head, binary = view[:length], view[length:]
    if length < MIN_LARGE_BYTES:
        try:
            return read_fast(head, binary)
        except NOT_FAST:
            if len(binary) < MIN_LARGE_BYTES and regions is None:
                return read_strictly(head, binary)
    return read_in_slices(head, binary, check, reserve, regions)


def decode_json(head: Buffer) -> RestRequest:
    """Reads a small JSON body without binary data.

    Raises:
        The same as `decode`.
    """
    try:
        return read_fast(head, _NO_BINARY)
    except NOT_FAST:
        return read_strictly(head, _NO_BINARY)


def encode(
    reply: InferReply,
    request: RestRequest,
    reserve: Reserve = int,
    classes: Classes | None = None,
) -> RestBody | Slices[RestBody]:
    """Encodes a response in the requested form; returns slices of the work if it is large.

    Args:
        reply: the model's.
        request: the request that it answers.
        reserve: reservation of memory for a large response.
        classes: classes that are wanted in place of outputs.

    Raises:
        InvalidRequestError: JSON cannot hold an output that was not requested as binary, or there
            are too many classes.
        BufferFullError: there is no room for it.
    """
    if any(map(is_large, reply.outputs.values())) or (classes and is_long(reply, classes)):
        without_inputs = msgspec.structs.replace(request, inputs=[])  # their memory is needed
        return _encode_large(reply, without_inputs, reserve, classes)
    return at_once(_encode(reply, request, reserve, classes))


def _encode_large(
    reply: InferReply, request: RestRequest, reserve: Reserve, classes: Classes | None
) -> Slices[RestBody]:
    reserve(sum(array.nbytes for array in reply.outputs.values()))
    return (yield from _encode(reply, request, reserve, classes))


def _encode(
    reply: InferReply, request: RestRequest, reserve: Reserve, classes: Classes | None
) -> Slices[RestBody]:
    if classes:
        reply = yield from classified(reply, classes, reserve)
    lane, regions = reply.lane, request.regions
    head: list[bytes | memoryview] = []
    text: list[bytes | memoryview] = [
        _answer_start(lane.model, lane.version, reply.artifact, reply.degraded)
    ]
    tail: list[bytes | memoryview] = []
    for name, array in reply.outputs.items():
        datatype = reply.datatypes[name]
        text.append(_output_start(name, datatype, array.shape))
        if regions is not None and name in regions.outputs:
            parts = yield from raw_parts(datatype, array, reserve)
            size = yield from regions.write(name, parts)
            text.append(_placed(regions.outputs[name], size))
        elif request.binary.get(name, request.binary_by_default):
            parts = yield from raw_parts(datatype, array, reserve)
            tail += parts
            text.append(b'"parameters":{"binary_data_size":%d}},' % sum(map(len, parts)))
        elif not is_large(array):
            text += (b'"data":', _json(name, datatype, array), b"},")
        else:
            text.append(b'"data":[')
            yield from _add_pieces(head, text, name, datatype, array, reserve)
            text.append(b"]},")
    text[-1] = text[-1][:-1]  # No comma after the last output; every model has one.
    text.append(b"]" if not request.id else b'],"id":' + orjson.dumps(request.id))
    text.append(b"}")
    head.append(b"".join(text))
    if not tail:
        return RestBody(head, None)
    length = sum(map(len, head))
    if sum(map(len, tail)) < MIN_VIEWED_BYTES:
        return RestBody([b"".join((*head, *tail))], length)
    return RestBody([*head, *(part for part in tail if len(part))], length)


def _add_pieces(
    head: list[bytes | memoryview],
    text: list[bytes | memoryview],
    name: str,
    datatype: str,
    array: Array,
    reserve: Reserve,
) -> Slices[None]:
    """Writes the elements of a large output after `text`, which moves to `head` in blocks."""
    size, comma = 0, b""
    try:
        for piece in json_pieces(name, datatype, array):
            nbytes = len(comma) + len(piece)
            reserve(nbytes)
            text += comma, piece
            comma = b","
            size += nbytes
            if size > BLOCK_BYTES:
                head.append(b"".join(text))
                text.clear()
                size = 0
            yield
    except TensorError as error:
        raise InvalidRequestError(str(error)) from error


def encode_one(reply: InferReply) -> bytes | None:
    """Encodes the usual response, one JSON output without an id, in half the time of `encode`.

    A response that names its artifact is not usual; returns None if it is large and needs
    `encode`.

    Raises:
        The same as `encode`.
    """
    ((name, array),) = reply.outputs.items()
    datatype = reply.datatypes[name]
    if array.size > ELEMENTS_A_PIECE or (datatype == "BYTES" and is_large(array)):
        return None
    try:
        data = to_json(name, datatype, array)
    except TensorError as error:
        raise InvalidRequestError(str(error)) from error
    return b"%b%b}]}" % (_start_of_one(reply.lane, name, datatype, array.shape), data)


@lru_cache(maxsize=1024)
def _start_of_one(lane: Lane, name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    return (
        _answer_start(lane.model, lane.version) + _output_start(name, datatype, shape) + b'"data":'
    )


@lru_cache(maxsize=1024)
def _answer_start(model: str, version: int, artifact: str = "", degraded: bool = False) -> bytes:
    document: dict[str, object] = {"model_name": model, "model_version": str(version)}
    if artifact:
        document["parameters"] = {"artifact": artifact} | ({"degraded": True} if degraded else {})
    head = orjson.dumps(document)
    return head[:-1] + b',"outputs":['


@lru_cache(maxsize=1024)
def _output_start(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    head = orjson.dumps({"name": name, "datatype": datatype, "shape": shape})
    return head[:-1] + b","


def _placed(part: RegionPart, size: int) -> bytes:
    """Returns the rest of an output that is in shared memory."""
    parameters = {
        "shared_memory_region": part.region,
        "shared_memory_offset": part.offset,
        "shared_memory_byte_size": size,
    }
    return b'"parameters":%b},' % orjson.dumps(parameters)


def _json(name: str, datatype: str, array: Array) -> bytes:
    try:
        return to_json(name, datatype, array)
    except TensorError as error:
        raise InvalidRequestError(str(error)) from error


def _json_length(value: str, body_length: int) -> int:
    length = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else -1
    if not 0 <= length <= body_length:
        raise InvalidRequestError(
            f"inference header size should be in range (0, {body_length}), got: {value[:40]}"
        )
    return length


def _decode_raw_body(
    body: Buffer, signature: Signature | None, reserve: Reserve
) -> Slices[RestRequest]:
    """Reads a body that is one tensor: batch of one, its shape from the signature."""
    if signature is None or len(signature.inputs) != 1:
        raise InvalidRequestError("a raw body needs a model with exactly one input")
    spec = signature.inputs[0]
    shape = list(spec.shape)
    if spec.batch_axis is not None:
        shape[spec.batch_axis] = 1
    if shape.count(-1) > 1:
        raise InvalidRequestError(f"a raw body does not determine the shape of {list(spec.shape)}")
    if -1 in shape:
        unit = DATATYPES[spec.datatype].itemsize * math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = len(body) // unit if unit else 0
    with naming_input(spec.name):
        array = yield from raw_array(spec.datatype, shape, body, reserve)
    reserve(-reserved_bytes(spec.datatype, len(body)))
    tensor = InputTensor(name=spec.name, datatype=spec.datatype, array=array)
    return RestRequest(inputs=[tensor], binary_by_default=True)
