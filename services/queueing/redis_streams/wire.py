"""Requests and outcomes as bytes, for a queue that crosses processes.

In: the records of `services.queueing.records`. Out: MessagePack, and the records again. What is
too large to travel through a stream is left under a key of its own, and its name travels.

Rules kept here: decoding runs no code of the sender's and views a tensor's bytes where they lie;
an error arrives as the class it left as, or, where the reader does not know that, as its root.
"""

from collections.abc import Iterator, Mapping

import msgspec

from model_store.tensors import (
    DATATYPES,
    Array,
    TensorError,
    datatype_of,
    decode_raw,
    encode_raw,
    raw_view,
)
from services.errors import ServingError
from services.queueing.memory_queue import Outcome
from services.queueing.records import InferReply, InferRequest, Lane
from services.tracing.context import TraceContext


class WireError(ServingError):
    """Bytes that are none of these records: another version's, or not from us at all."""


class _Tensor(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview


class _Request(msgspec.Struct, array_like=True, frozen=True, gc=False):
    request_id: str
    inputs: tuple[_Tensor, ...]
    rows: int
    priority: int
    length: int | None
    outputs: tuple[str, ...]
    trace: TraceContext | None = None


class _Reply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=0):
    outputs: tuple[_Tensor, ...]
    datatypes: dict[str, str]
    batch_rows: int
    queue_s: float
    execution_s: float


class _Error(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=1):
    kind: str
    message: str


_UNREADABLE = (msgspec.MsgspecError, TensorError, UnicodeDecodeError)
"""What decoding raises; text that is not UTF-8 is no error of msgspec's."""

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_Request | str).decode
_decode_outcome = msgspec.msgpack.Decoder(_Reply | _Error | str).decode


def encode_reference(key: str) -> bytes:
    """What travels instead of something large: the key under which it lies."""
    return _encode(key)


def encode_request(request: InferRequest) -> bytes:
    """All of a request but its lane and its deadline, which the queue keeps beside it."""
    return _encode(
        _Request(
            request.request_id,
            _tensors(request.inputs),
            request.rows,
            request.priority,
            request.length,
            tuple(request.outputs),
            request.trace,
        )
    )


def decode_request(data: bytes, lane: Lane, deadline: float, alone: bool) -> InferRequest | str:
    """The request again, whose arrays view `data`; or the key under which it lies.

    Args:
        data: what `encode_request` or `encode_reference` gave.
        lane: whose queue it came from.
        deadline: `time.monotonic()` second of this process.
        alone: whether it must not share a batch.

    Raises:
        WireError: it is neither.
    """
    try:
        found = _decode_request(data)
        if isinstance(found, str):
            return found
        inputs = _arrays(found.inputs)
    except _UNREADABLE as error:
        raise WireError(f"a queued request for model {lane} cannot be read: {error}") from error
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
    )


def encode_outcome(outcome: Outcome) -> bytes:
    """What a worker answers, or the error that refuses the request; all but its lane."""
    if isinstance(outcome, ServingError):
        return _encode(_Error(type(outcome).__name__, str(outcome)))
    return _encode(
        _Reply(
            _tensors(outcome.outputs),
            dict(outcome.datatypes),
            outcome.batch_rows,
            outcome.queue_s,
            outcome.execution_s,
        )
    )


def decode_outcome(data: bytes | memoryview, lane: Lane) -> Outcome | str:
    """The outcome again, whose arrays view `data`; or the key under which it lies.

    One that cannot be read is an error like any other.
    """
    try:
        found = _decode_outcome(data)
        if isinstance(found, str):
            return found
        if isinstance(found, _Error):
            return error_of_kind(found.kind, found.message)
        outputs = _arrays(found.outputs)
    except _UNREADABLE as error:
        return WireError(f"the answer of model {lane} cannot be read: {error}")
    return InferReply(
        lane=lane,
        outputs=outputs,
        datatypes=found.datatypes,
        batch_rows=found.batch_rows,
        queue_s=found.queue_s,
        execution_s=found.execution_s,
    )


def error_of_kind(kind: str, message: str) -> ServingError:
    """An error again that another process raised.

    Args:
        kind: the name of its class; the root of the tree stands for one that is not known here.
        message: what it said.
    """
    return _ERRORS.get(kind, ServingError)(message)


def _tensors(arrays: Mapping[str, Array]) -> tuple[_Tensor, ...]:
    tensors = []
    for name, array in arrays.items():
        datatype = _DATATYPES.get(array.dtype) or datatype_of(array)
        if datatype == "BYTES" or not array.size:
            data = memoryview(encode_raw(datatype, array))
        else:
            data = raw_view(datatype, array)
        tensors.append(_Tensor(name, datatype, array.shape, data))
    return tuple(tensors)


_DATATYPES = {dtype: name for name, dtype in DATATYPES.items() if name not in ("BF16", "BYTES")}
"""BF16 travels as the UINT16 it is in memory."""


def _arrays(tensors: tuple[_Tensor, ...]) -> dict[str, Array]:
    return {t.name: decode_raw(t.datatype, t.shape, t.data) for t in tensors}


def _errors(root: type[ServingError] = ServingError) -> Iterator[type[ServingError]]:
    yield root
    for error in root.__subclasses__():
        yield from _errors(error)


_ERRORS = {error.__name__: error for error in _errors()}
