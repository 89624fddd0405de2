"""Requests and outcomes as bytes, for a queue that crosses processes.

In: the records of `services.queueing.records`. Out: MessagePack, and the records again. What is
too large to travel through a stream is written in pieces: the bytes of its tensors, and at last
the record without them (`large_records.py`); or, between processes of one host, in a file that the
record names (`host_files.py`).

Rules: decoding runs no code of the sender's and views a tensor's bytes where they lie;
an error arrives as the class it left as, or, where the reader does not know that, as its root.
"""

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from flambeau.protocol.tensors import (
    DATATYPES,
    Array,
    TensorError,
    bytes_elements_in_pieces,
    datatype_of,
    decode_raw,
    encode_raw,
    raw_view,
)
from services.errors import ServingError
from services.queueing.memory_queue import Outcome
from services.queueing.merged_requests import MERGED_ROWS
from services.queueing.records import InferReply, InferRequest, Lane, SequenceStep
from services.tracing.context import TraceContext


class WireError(ServingError):
    """Undecodable bytes: of another version, or of another sender."""


class TensorRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A tensor: its bytes, or how many of them there are in pieces or in the record's file."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview
    size: int = 0


class RequestRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All of a request but its lane and its deadline, which the queue keeps beside it."""

    request_id: str
    inputs: tuple[TensorRecord, ...]
    rows: int
    priority: int
    length: int | None
    outputs: tuple[str, ...]
    trace: TraceContext | None = None
    sequence: SequenceStep | None = None
    accuracy: str = ""
    file: str = ""
    """Name of the file in its gateway's folder that has the tensors' bytes."""
    merged: Annotated[int, msgspec.Meta(ge=1, le=MERGED_ROWS)] = 1


class ReplyRecord(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=0):
    """All of a reply but its lane."""

    outputs: tuple[TensorRecord, ...]
    datatypes: dict[str, str]
    batch_rows: int
    queue_s: float
    execution_s: float
    number: int = 0
    is_last: bool = True
    file: str = ""
    """Name of the file in the gateway's folder that has the tensors' bytes."""


class _PartReference(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=2):
    key: str


class Reference(NamedTuple):
    """The key under which an outcome lies. One that is not the last travels as a record."""

    key: str
    is_last: bool = True


class _Error(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=1):
    kind: str
    message: str


UNREADABLE = (msgspec.MsgspecError, TensorError, UnicodeDecodeError)
"""Exceptions of decoding; msgspec has no error for text that is not UTF-8."""

INLINE_BYTES = 256 * 1024
"""Largest size of tensors sent inline; larger ones travel in pieces."""
INLINE_TEXTS = 2048
"""Elements of BYTES; to write and to read each takes some 0.6 µs."""
PIECE_BYTES = 256 * 1024
FILE_ALIGNMENT = 64
"""Each tensor in a file begins at a multiple of so many bytes, as kernels of models like it."""
Piece = bytes | memoryview
Read = Callable[[str, int], memoryview]
"""Views the file of a name, which has so many bytes; raises `TensorError`."""

NOTICE = re.compile(r"(\S+) ([0-9]{1,20})(?: ([0-9]{1,20}))?")
"""A line of a notice: gateway, number of a request, and the parts of its answer that were read."""
_ADDRESS = re.compile(rb"[!-~]+ [0-9]{1,20}")
_TIME = re.compile(rb"[0-9]{1,19}")

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(RequestRecord | str).decode
_decode_outcome = msgspec.msgpack.Decoder(ReplyRecord | _PartReference | _Error | str).decode


def encode_reference(key: str, *, is_last: bool = True) -> bytes:
    """Encodes the key of a large record, which is sent in its place."""
    return _encode(key if is_last else _PartReference(key))


def is_large(arrays: Mapping[str, Array]) -> bool:
    """True if tensors travel in pieces."""
    return bytes_of(arrays) > INLINE_BYTES


def bytes_of(arrays: Mapping[str, Array]) -> float:
    """Bytes of tensors; infinite where texts are so many that to count them takes long."""
    size = 0
    for array in arrays.values():
        if array.dtype.kind not in "OSU":
            size += array.nbytes
        elif array.size > INLINE_TEXTS:
            return math.inf
        else:
            size += sum(map(len, array.ravel().tolist()))
    return size


def fits_a_file(arrays: Mapping[str, Array]) -> bool:
    """True if tensors may travel in a file: texts are no memory that a reader could view."""
    return all(array.dtype in _DATATYPES for array in arrays.values())


def file_parts(arrays: Mapping[str, Array]) -> list[Piece]:
    """The contents of a file: each tensor, and zeros up to the next one's place."""
    parts: list[Piece] = []
    for array in arrays.values():
        if array.size:
            parts += raw_view(_DATATYPES[array.dtype], array), bytes(-array.nbytes % FILE_ALIGNMENT)
    return parts


def _file_tensors(arrays: Mapping[str, Array]) -> tuple[TensorRecord, ...]:
    return tuple(
        TensorRecord(name, _DATATYPES[array.dtype], array.shape, _NOTHING, array.nbytes)
        for name, array in arrays.items()
    )


def reference_in(data: bytes | memoryview) -> str:
    """Returns the key of a stored outcome; empty if the outcome is inline."""
    try:
        found = reply_record(data)
    except UNREADABLE:
        return ""
    return found.key if isinstance(found, Reference) else ""


def encode_request(request: InferRequest, file: str = "") -> bytes:
    """Encodes all of a request but its lane and its deadline; its tensors may be in a file."""
    tensors = _file_tensors(request.inputs) if file else _tensors(request.inputs)
    return _encode(_request_record(request, tensors, file))


def request_pieces(request: InferRequest) -> Iterator[Piece]:
    """Yields the same in pieces of at most `PIECE_BYTES`, which view the request's arrays."""
    tensors = yield from _tensor_pieces(request.inputs)
    yield _encode(_request_record(request, tensors))


def _request_record(
    request: InferRequest, inputs: tuple[TensorRecord, ...], file: str = ""
) -> RequestRecord:
    return RequestRecord(
        request.request_id,
        inputs,
        request.rows,
        request.priority,
        request.length,
        tuple(request.outputs),
        request.trace,
        request.sequence,
        request.accuracy,
        file,
        request.merged,
    )


def no_file(name: str, size: int) -> memoryview:
    """A `Read` without files.

    Raises:
        TensorError: always.
    """
    raise TensorError(f"its {size} bytes are in file '{name:.200}' of the host that sent it")


def decode_request(
    data: bytes, lane: Lane, deadline: float, alone: bool, read: Read = no_file
) -> InferRequest | str:
    """Decodes a request, whose arrays view `data` or a file; or the key under which it lies.

    Args:
        data: result of `encode_request` or `encode_reference`.
        lane: whose queue it came from.
        deadline: `time.monotonic()` second of this process.
        alone: True if it must not share a batch.
        read: files of the gateway that sent it.

    Raises:
        WireError: it is neither, or its file cannot be read.
    """
    try:
        found = _decode_request(data)
        if isinstance(found, str):
            return found
        inputs = _arrays(found.inputs, found.file, read)
    except UNREADABLE as error:
        raise unreadable_request(lane, error) from error
    return request_of(found, inputs, lane, deadline, alone)


def request_record(data: bytes, lane: Lane) -> RequestRecord | str:
    """Decodes the record of a request, or the key under which it lies.

    Raises:
        WireError: it is neither.
    """
    try:
        found: RequestRecord | str = _decode_request(data)
    except UNREADABLE as error:
        raise unreadable_request(lane, error) from error
    return found


def request_of(
    found: RequestRecord, inputs: dict[str, Array], lane: Lane, deadline: float, alone: bool
) -> InferRequest:
    """The request of a record; the arguments are as in `decode_request`."""
    return InferRequest(
        request_id=found.request_id,
        lane=lane,
        inputs=inputs,
        rows=found.rows,
        deadline=deadline,
        priority=found.priority,
        length=found.length,
        outputs=found.outputs,
        alone=alone,
        trace=found.trace,
        sequence=found.sequence,
        accuracy=found.accuracy,
        merged=found.merged,
    )


def encode_outcome(outcome: Outcome, file: str = "") -> bytes:
    """Encodes a worker's reply without its lane, or the error; its tensors may be in a file."""
    if isinstance(outcome, ServingError):
        return _encode(_Error(type(outcome).__name__, str(outcome)))
    tensors = _file_tensors(outcome.outputs) if file else _tensors(outcome.outputs)
    return _encode(_reply_record(outcome, tensors, file))


def reply_pieces(reply: InferReply) -> Iterator[Piece]:
    """Yields the same in pieces of at most `PIECE_BYTES`, which view the reply's arrays."""
    tensors = yield from _tensor_pieces(reply.outputs)
    yield _encode(_reply_record(reply, tensors))


def _reply_record(
    reply: InferReply, outputs: tuple[TensorRecord, ...], file: str = ""
) -> ReplyRecord:
    return ReplyRecord(
        outputs, dict(reply.datatypes), reply.batch_rows, reply.queue_s, reply.execution_s,
        reply.number, reply.is_last, file,
    )  # fmt: skip


def decode_outcome(
    data: bytes | memoryview, lane: Lane, read: Read = no_file
) -> Outcome | Reference:
    """Decodes an outcome, whose arrays view `data` or a file; or its reference.

    One that cannot be read is an error like any other.
    """
    try:
        found = reply_record(data)
        if not isinstance(found, ReplyRecord):
            return found
        outputs = _arrays(found.outputs, found.file, read)
    except UNREADABLE as error:
        return unreadable_reply(lane, error)
    return reply_of(found, outputs, lane)


def reply_record(data: bytes | memoryview) -> ReplyRecord | ServingError | Reference:
    """Decodes the record of a reply, an error, or a reference.

    Raises:
        MsgspecError, UnicodeDecodeError: it is none of them.
    """
    found = _decode_outcome(data)
    if isinstance(found, ReplyRecord):
        return found
    if isinstance(found, _Error):
        return error_of_kind(found.kind, found.message)
    return Reference(found) if isinstance(found, str) else Reference(found.key, is_last=False)


def reply_of(found: ReplyRecord, outputs: dict[str, Array], lane: Lane) -> InferReply:
    """Returns the reply of a record."""
    return InferReply(
        lane=lane,
        outputs=outputs,
        datatypes=found.datatypes,
        batch_rows=found.batch_rows,
        queue_s=found.queue_s,
        execution_s=found.execution_s,
        number=found.number,
        is_last=found.is_last,
    )


def unreadable_request(lane: Lane, error: Exception) -> WireError:
    """The error of a request that decoding refuses."""
    return WireError(f"a queued request for model {lane} cannot be read: {error}")


def unreadable_reply(lane: Lane, error: Exception) -> WireError:
    """The error of an answer that decoding refuses."""
    return WireError(f"the answer of model {lane} cannot be read: {error}")


def error_of_kind(kind: str, message: str) -> ServingError:
    """An error again that another process raised.

    Args:
        kind: the name of its class; the root of the tree stands for one that is not known here.
        message: message of the error.
    """
    return _ERRORS.get(kind, ServingError)(message)


def _tensors(arrays: Mapping[str, Array]) -> tuple[TensorRecord, ...]:
    tensors = []
    for name, array in arrays.items():
        datatype = _DATATYPES.get(array.dtype) or datatype_of(array)
        if datatype == "BYTES" or not array.size:
            data = memoryview(encode_raw(datatype, array))
        else:
            data = raw_view(datatype, array)
        tensors.append(TensorRecord(name, datatype, array.shape, data))
    return tuple(tensors)


def _tensor_pieces(
    arrays: Mapping[str, Array],
) -> Generator[Piece, None, tuple[TensorRecord, ...]]:
    """Yields the bytes of tensors, and returns their records."""
    tensors = []
    for name, array in arrays.items():
        datatype = _DATATYPES.get(array.dtype) or datatype_of(array)
        parts: Iterable[Piece] = ()
        if datatype == "BYTES":
            parts = bytes_elements_in_pieces(array)
        elif array.size:
            parts = [raw_view(datatype, array)]
        size = 0
        for part in parts:
            size += len(part)
            view = memoryview(part)
            for start in range(0, len(part), PIECE_BYTES):
                yield view[start : start + PIECE_BYTES]
        tensors.append(TensorRecord(name, datatype, array.shape, _NOTHING, size))
    return tuple(tensors)


_NOTHING = memoryview(b"")
_DATATYPES = {dtype: name for name, dtype in DATATYPES.items() if name not in ("BF16", "BYTES")}
"""BF16 travels as the UINT16 it is in memory."""


def _arrays(tensors: Sequence[TensorRecord], file: str, read: Read) -> dict[str, Array]:
    if not file:
        return {t.name: decode_raw(t.datatype, t.shape, t.data) for t in tensors}
    if min((tensor.size for tensor in tensors), default=0) < 0:
        raise TensorError("a tensor has a negative size")
    view = read(file, sum(_room_of(tensor) for tensor in tensors))
    found, start = dict[str, Array](), 0
    for tensor in tensors:
        data = view[start : start + tensor.size]
        found[tensor.name] = decode_raw(tensor.datatype, tensor.shape, data)
        start += _room_of(tensor)
    return found


def _room_of(tensor: TensorRecord) -> int:
    """Bytes of a tensor in a file, and those behind it up to the next one's place."""
    return tensor.size + -tensor.size % FILE_ALIGNMENT


def _errors(root: type[ServingError] = ServingError) -> Iterator[type[ServingError]]:
    yield root
    for error in root.__subclasses__():
        yield from _errors(error)


_ERRORS = {error.__name__: error for error in _errors()}


def is_request(fields: dict[bytes, bytes]) -> bool:
    """Returns True if an entry has the form that gateways write."""
    return (
        _TIME.fullmatch(fields.get(b"deadline", b"")) is not None
        and _ADDRESS.fullmatch(fields.get(b"address", b"")) is not None
        and b"payload" in fields
    )


def fields_of(flat: list[bytes]) -> dict[bytes, bytes]:
    """Returns the fields of an entry as a script gives them: names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
