"""Reads large inference requests without copying their raw tensors.

protobuf copies every byte of a message twice: into memory of its own, and from there into Python's.
It parses only the rest of a large message; the raw tensors are views of the receive buffer
(0.6 MB: 4 µs in place of 33).

Rule: the part that protobuf parses is limited first, since parsing blocks the event loop and makes
up to 32 bytes of one. Packed `fp32_contents` and `fp64_contents` have the bytes of raw tensors, so
they are viewed, too.
"""

import math
from collections.abc import Sequence
from typing import Final

from flambeau.protocol.tensors import DATATYPES, MAX_RANK
from model_store.safety.protobuf_fields import BYTES, fields_of
from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError
from services.wire.body import MIN_VIEWED_BYTES, Body
from services.wire.http2.grpc_call import parsed

_NUMBER: Final = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_EMPTY: Final = bytes((_NUMBER << 3 | BYTES, 0))
_INPUTS: Final = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["inputs"].number
_CONTENTS: Final = pb.ModelInferRequest.InferInputTensor.DESCRIPTOR.fields_by_name[
    "contents"
].number
_DATATYPES_OF_FIELDS: Final = {
    pb.InferTensorContents.DESCRIPTOR.fields_by_name[name].number: datatype
    for name, datatype in (("fp32_contents", "FP32"), ("fp64_contents", "FP64"))
}
_INPUT: Final = bytes((_INPUTS << 3 | BYTES,))
_DATATYPE: Final = pb.ModelInferRequest.InferInputTensor.DESCRIPTOR.fields_by_name[
    "datatype"
].number
_DATATYPE_LENGTH = len("FP32")
_JOB_REQUEST: Final = 1
"""The field of `SubmitJobRequest` that holds an inference (protos/flambeau/v1/jobs.proto)."""

MAX_FIELDS = 1024
"""Most fields of a large message: inputs, outputs, parameters and raw tensors, some 0.5 µs each."""
MAX_INNER_FIELDS = 4 * MAX_FIELDS
"""Most fields of all large inputs of a large message together."""
MAX_TYPED_BYTES = 512 * 1024
"""Most bytes of a large message for protobuf: names, shapes, contents but FP32 and FP64. Half a
million numbers of a byte each take it and NumPy some 30 ms."""
_LEAST_VIEWED_BYTES = 16 * 1024
"""Size of an input that is viewed; protobuf parses smaller ones, whatever they hold."""


def read_infer_request(
    body: Body,
) -> tuple[pb.ModelInferRequest, Sequence[bytes | memoryview | None]]:
    """Reads a request, and its raw tensors separately.

    Args:
        body: message, which must not change any more, since the tensors may view it.

    Returns:
        The message, whose own `raw_input_contents` have the same count and may be empty; and their
        bytes, or those of numbers that were sent as contents. None for an input whose contents are
        in the message.

    Raises:
        InvalidRequestError: the bytes are not this message, or it exceeds a limit.
    """
    if len(body) < MIN_VIEWED_BYTES:
        request = parsed(pb.ModelInferRequest, body)
        if len(body) > MAX_FIELDS:  # each takes 2 bytes at least, and some µs to parse
            Allowance().take(max(len(request.inputs), len(request.outputs)))
        return request, request.raw_input_contents
    message = memoryview(body)
    try:
        rest, raw, numbers = _split(message, Allowance())
    except (ValueError, IndexError):  # malformed, or in a form that only protobuf judges
        _check_typed(len(message))
        rest, raw, numbers = bytes(message), [], []
    _check_typed(len(rest))
    request = parsed(pb.ModelInferRequest, rest)
    if not any(data is not None for data in numbers):
        return request, raw or request.raw_input_contents
    if raw:
        raise InvalidRequestError(
            "inputs have contents while raw_input_contents is used; send one form"
        )
    _check_counts(request, numbers)
    return request, numbers


def check_job_request(body: Body) -> None:
    """Checks the limits of an inference within a `SubmitJobRequest`.

    Raises:
        InvalidRequestError: it exceeds one of them.
    """
    if len(body) < MIN_VIEWED_BYTES:
        return
    message, allowance = memoryview(body), Allowance()
    beside = len(message)
    try:
        for number, wire, start, end in fields_of(message, 0, len(message)):
            allowance.take()
            if number == _JOB_REQUEST and wire == BYTES:
                rest, _, _ = _split(message[start:end], allowance)
                beside += len(rest) - (end - start)
    except (ValueError, IndexError):
        beside = len(message)
    _check_typed(beside)


class Allowance:
    """Number of fields that may still be parsed in one message."""

    __slots__ = ("_inner", "_left")

    def __init__(self) -> None:
        self._left, self._inner = MAX_FIELDS, MAX_INNER_FIELDS

    def take(self, count: int = 1) -> None:
        """Counts fields of the message itself.

        Raises:
            InvalidRequestError: there are too many.
        """
        self._left -= count
        if self._left < 0:
            raise InvalidRequestError(
                f"the message has more than {MAX_FIELDS} inputs, outputs, parameters and raw "
                "tensors, the limit; send fewer"
            )

    def take_inner(self) -> None:
        """Counts a field of an input.

        Raises:
            InvalidRequestError: there are too many.
        """
        self._inner -= 1
        if self._inner < 0:
            raise InvalidRequestError(
                f"the large inputs of the message have more than {MAX_INNER_FIELDS} fields, the "
                "limit; send fewer, and numbers packed"
            )


def _check_typed(size: int) -> None:
    if size > MAX_TYPED_BYTES:
        raise InvalidRequestError(
            f"the message has {size} bytes that are neither raw_input_contents nor packed FP32 or "
            f"FP64 contents, and {MAX_TYPED_BYTES} is the limit; send large tensors as "
            "raw_input_contents"
        )


def _check_counts(request: pb.ModelInferRequest, numbers: Sequence[memoryview | None]) -> None:
    for tensor, data in zip(request.inputs, numbers, strict=True):
        if data is None:
            continue
        found, shape = len(data) / DATATYPES[tensor.datatype].itemsize, list(tensor.shape)
        if found != math.prod(shape):
            raise InvalidRequestError(
                f"input '{tensor.name}': contents hold {found:g} elements; "
                f"shape {shape[:MAX_RANK]} takes {math.prod(shape)}"
            )


def _split(
    message: memoryview, allowance: Allowance
) -> tuple[bytes, list[memoryview], list[memoryview | None]]:
    """Splits a message into the part without raw tensors and numbers, and views of both.

    Args:
        message: the whole message.
        allowance: allowance of its fields.

    Returns:
        The message with empty raw tensors; the raw tensors' views; and for each input the
        packed numbers of its contents, or None.

    Raises:
        InvalidRequestError: it has too many fields, or too many bytes of other fields.
        ValueError: it is truncated, or has a deprecated field type (a group).
        IndexError: it is truncated.
    """
    rest, begin = bytearray(), 0
    raw: list[memoryview] = []
    numbers: list[memoryview | None] = []
    for number, wire, start, end in fields_of(message, 0, len(message)):
        allowance.take()
        if number == _NUMBER and wire == BYTES:
            raw.append(message[start:end])
            rest += _EMPTY
        elif number == _INPUTS and wire == BYTES:
            fields, found = _split_input(message, start, end, allowance)
            numbers.append(found)
            rest += message[begin:end] if found is None else _INPUT + _length(fields) + fields
        else:
            rest += message[begin:end]
        begin = end
        _check_typed(len(rest))
    return bytes(rest), raw, numbers


def _split_input(
    message: memoryview, start: int, end: int, allowance: Allowance
) -> tuple[bytes, memoryview | None]:
    """Splits an input from its numbers; None in their place if protobuf must read them."""
    if end - start < _LEAST_VIEWED_BYTES:
        return b"", None
    rest, begin, datatype = bytearray(), start, ""
    contents: list[tuple[int, int]] = []
    for number, wire, at, after in fields_of(message, start, end):
        allowance.take_inner()
        if number == _CONTENTS and wire == BYTES:
            contents.append((at, after))
        else:
            rest += message[begin:after]
        if number == _DATATYPE and wire == BYTES and after - at == _DATATYPE_LENGTH:
            datatype = bytes(message[at:after]).decode("latin-1")
        begin = after
    if len(contents) == 1:
        number, wire, at, after = next(fields_of(message, *contents[0]), (0, 0, 0, 0))
        packed = wire == BYTES and after == contents[0][1]
        if packed and _DATATYPES_OF_FIELDS.get(number) == datatype:
            return bytes(rest), message[at:after]
    return b"", None


def _length(data: bytes) -> bytes:
    """Encodes the length of a field as a varint."""
    size, out = len(data), bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)
