"""Requests and answers of handlers, as elements of BYTES tensors. Pure.

A version of an archive has one input, `request`, and one output, `response`, both BYTES of one
element a row. An element is the length of a JSON head, 4 bytes little-endian; the head; and the
bytes that it describes. The door encodes requests and decodes answers; the process of the handler
does the opposite.

Rules: a head that does not describe its bytes exactly is an error; the greeting is answered by
the process itself, once its handler is initialized, and never reaches the handler.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensor_spec import TensorSpec

REQUEST, RESPONSE = "request", "response"
"""Names of the input and of the output."""
BODY = "body"
"""Name of the only part of a raw body."""
MAX_HEAD_BYTES = 2**18
"""Head of a request or answer: names and headers of HTTP, and metrics."""

_LENGTH = struct.Struct("<I")


class HandlerCallError(ValueError):
    """An element that is no request, or no answer."""


class Part(msgspec.Struct, frozen=True):
    """A part of a request's body; a raw body is one, named `BODY`."""

    name: str
    content_type: str
    data: bytes | bytearray | memoryview


class HandlerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a handler."""

    id: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    parts: Sequence[Part] = ()


class Measurement(msgspec.Struct, frozen=True, array_like=True):
    """A value that a handler measured: a metric of its own."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    unit: str
    value: float
    dimensions: Mapping[str, str]


class HandlerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of a handler to one request, or a part of it."""

    body: bytes | memoryview = b""
    status: int = 200
    phrase: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Headers that the handler set; among them `content-type`, if it set one."""
    is_intermediate: bool = False
    """True if the handler sent it before its result."""
    failure: str = ""
    """The reason why there is no answer, in TorchServe's words; `status` is its code then."""
    measurements: Sequence[Measurement] = ()
    """Metrics of the whole batch, with its first answer."""
    dropped: int = 0
    """Number of further ones, which did not fit."""

    @property
    def is_plain(self) -> bool:
        """True if a status of 200 and a body are all that it has, as most answers do."""
        return self.status == 200 and not (
            self.headers
            or self.phrase
            or self.measurements
            or self.failure
            or self.is_intermediate
            or self.dropped
        )


def signature_of(batch_size: int, sequences: Sequences | None = None) -> Signature:
    """Returns the signature of a version whose handler takes up to `batch_size` requests.

    Args:
        batch_size: requests of a batch.
        sequences: rules of sequences whose state the handler keeps; None for none.
    """
    return Signature(
        inputs=(TensorSpec(name=REQUEST, datatype="BYTES", shape=(-1,)),),
        outputs=(TensorSpec(name=RESPONSE, datatype="BYTES", shape=(-1,)),),
        max_batch_size=batch_size,
        sequence=sequences,
    )


class _RequestHead(msgspec.Struct):
    """The head of a request."""

    id: str
    headers: dict[str, str]
    parts: list[tuple[str, str, int]]
    """Name, content type and number of bytes."""


class _AnswerHead(msgspec.Struct, omit_defaults=True):
    """The head of an answer."""

    status: int
    phrase: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    goes_on: bool = False
    failure: str = ""
    measurements: list[Measurement] = msgspec.field(default_factory=list)
    dropped: int = 0


_Head = TypeVar("_Head", _RequestHead, _AnswerHead)
_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(_RequestHead)
_answer_decoder = msgspec.json.Decoder(_AnswerHead)


def encode_request(request: HandlerRequest) -> bytes:
    """Returns a request as an element.

    Raises:
        HandlerCallError: its head is too large.
    """
    parts = [(part.name, part.content_type, len(part.data)) for part in request.parts]
    head = _RequestHead(request.id, dict(request.headers), parts)
    return _encoded(head, [part.data for part in request.parts])


def decode_request(element: bytes) -> HandlerRequest:
    """Returns the request in an element; its data are views of it.

    Raises:
        HandlerCallError: it is no request.
    """
    head, rest = _split(element, _request_decoder)
    parts, at = [], 0
    for name, content_type, size in head.parts:
        if size < 0:
            raise HandlerCallError(f"its part '{name[:60]}' has {size} bytes")
        parts.append(Part(name, content_type, rest[at : at + size]))
        at += size
    if at != len(rest):
        raise HandlerCallError(f"its parts have {at:,} bytes, and it has {len(rest):,}")
    return HandlerRequest(id=head.id, headers=head.headers, parts=parts)


def encode_answer(answer: HandlerAnswer) -> bytes:
    """Returns an answer as an element.

    Raises:
        HandlerCallError: its head is too large.
    """
    if answer.is_plain:
        return b"".join((GREETED, answer.body))
    head = _AnswerHead(
        answer.status,
        answer.phrase,
        dict(answer.headers),
        answer.is_intermediate,
        answer.failure,
        list(answer.measurements),
        answer.dropped,
    )
    return _encoded(head, [answer.body])


def decode_answer(element: bytes) -> HandlerAnswer:
    """Returns the answer in an element; its body is a view of it.

    Raises:
        HandlerCallError: it is no answer.
    """
    if element.startswith(GREETED):  # as most are: a status of 200, and a body
        return HandlerAnswer(body=memoryview(element)[len(GREETED) :])
    head, body = _split(element, _answer_decoder)
    return HandlerAnswer(
        body=body,
        status=head.status,
        phrase=head.phrase,
        headers=head.headers,
        is_intermediate=head.goes_on,
        failure=head.failure,
        measurements=head.measurements,
        dropped=head.dropped,
    )


def _encoded(head: _Head, data: Sequence[bytes | bytearray | memoryview]) -> bytes:
    text = _text(head)
    if len(text) > MAX_HEAD_BYTES:
        raise HandlerCallError(
            f"its names and headers have {len(text):,} bytes, and at most {MAX_HEAD_BYTES:,} fit; "
            "send fewer or shorter ones"
        )
    return b"".join([_LENGTH.pack(len(text)), text, *data])


def _text(head: _RequestHead | _AnswerHead) -> bytes:
    """Returns a head as JSON, with the values that only Python's JSON has, if there are some."""
    measured = head.measurements if isinstance(head, _AnswerHead) else ()
    try:
        if all(math.isfinite(one.value) for one in measured):
            return _encoder.encode(head)
    except UnicodeEncodeError:  # lone surrogates, which handlers and callers may choose
        pass
    return json.dumps(msgspec.to_builtins(head), separators=(",", ":")).encode()


def _split(element: bytes, decoder: "msgspec.json.Decoder[_Head]") -> tuple[_Head, memoryview]:
    """Returns the head of an element, and what follows it."""
    if len(element) < _LENGTH.size:
        raise HandlerCallError(f"it has {len(element)} bytes, too few for the length of a head")
    size = _LENGTH.unpack_from(element)[0]
    end = _LENGTH.size + size
    if size > MAX_HEAD_BYTES or end > len(element):
        raise HandlerCallError(f"its head has {size:,} bytes, and it has {len(element):,}")
    rest = memoryview(element)
    text = rest[_LENGTH.size : end]
    try:
        return decoder.decode(text), rest[end:]
    except msgspec.ValidationError as error:
        raise HandlerCallError(f"its head is none: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(json.loads(bytes(text)), decoder.type), rest[end:]
    except (ValueError, RecursionError) as error:
        raise HandlerCallError(f"its head is no JSON, or none: {error}") from error


GREETING = encode_request(HandlerRequest(id="ready"))
"""The request that asks whether the handler is initialized: it has no parts and no headers."""
GREETED = _encoded(_AnswerHead(200), [])
"""The answer to it, the golden row of every archive; plain answers begin so."""
