"""Requests and answers of handlers, as elements of BYTES tensors. Pure.

A version of an archive has one input, `request`, and one output, `response`, both BYTES of one
element a row. An answer is the length of a JSON head, 4 bytes little-endian; the head; and the
bytes that it describes. A request has the length of its id behind that of the head, and the id
before the head: so requests of one client have one head, which both sides know from the one before.
The door encodes requests and decodes answers; the process of the handler does the opposite.

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

MAX_KNOWN_HEADS = 64
MAX_KNOWN_HEAD_BYTES = 4096
"""Heads of requests that a handler's process keeps decoded; a full table is cleared."""

_LENGTH = struct.Struct("<I")
_LENGTHS = struct.Struct("<II")


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


_known_heads: dict[bytes, _RequestHead] = {}


def encode_request(request: HandlerRequest) -> bytes:
    """Returns a request as an element.

    Raises:
        HandlerCallError: its head is too large.
    """
    return element_of(head_of(request), request.id, [part.data for part in request.parts])


def head_of(request: HandlerRequest) -> bytes:
    """Returns the head of a request, and of all with its headers and parts of the same sizes.

    Raises:
        HandlerCallError: it is too large.
    """
    parts = [(part.name, part.content_type, len(part.data)) for part in request.parts]
    return _checked_text(_RequestHead(dict(request.headers), parts))


def element_of(head: bytes, identity: str, data: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """Returns a request as an element.

    Args:
        head: see `head_of`.
        identity: its id.
        data: of its parts.
    """
    name = identity.encode("utf-8", "surrogatepass")
    return b"".join((_LENGTHS.pack(len(head), len(name)), name, head, *data))


def decode_request(element: bytes) -> HandlerRequest:
    """Returns the request in an element; its data are views of it.

    Raises:
        HandlerCallError: it is no request.
    """
    if len(element) < _LENGTHS.size:
        raise HandlerCallError(f"it has {len(element)} bytes, too few for the lengths of a head")
    size, name_size = _LENGTHS.unpack_from(element)
    start = _LENGTHS.size + name_size
    at = start + size
    if size > MAX_HEAD_BYTES or name_size > MAX_HEAD_BYTES or at > len(element):
        raise HandlerCallError(
            f"its head has {size:,} bytes, its id {name_size:,}, and it has {len(element):,}"
        )
    text = element[start:at]
    head = _known_heads.get(text) or _learned(text)
    rest, parts = memoryview(element), []
    for name, content_type, length in head.parts:
        parts.append(Part(name, content_type, rest[at : at + length]))
        at += length
    if at != len(element):
        raise HandlerCallError(f"its parts end at {at:,}, and it has {len(element):,} bytes")
    try:
        identity = element[_LENGTHS.size : start].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise HandlerCallError(f"its id is no text: {error}") from error
    return HandlerRequest(id=identity, headers=head.headers, parts=parts)


def _learned(text: bytes) -> _RequestHead:
    """Decodes a head, and keeps it if it is small.

    Raises:
        HandlerCallError: it is none.
    """
    head = _head_in(text, _request_decoder)
    for name, _, length in head.parts:
        if length < 0:
            raise HandlerCallError(f"its part '{name[:60]}' has {length} bytes")
    if len(text) <= MAX_KNOWN_HEAD_BYTES:
        if len(_known_heads) >= MAX_KNOWN_HEADS:
            _known_heads.clear()
        _known_heads[text] = head
    return head


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
    head, body = _split(element)
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
    text = _checked_text(head)
    return b"".join([_LENGTH.pack(len(text)), text, *data])


def _checked_text(head: _RequestHead | _AnswerHead) -> bytes:
    """Returns a head as JSON.

    Raises:
        HandlerCallError: it is too large.
    """
    text = _text(head)
    if len(text) > MAX_HEAD_BYTES:
        raise HandlerCallError(
            f"its names and headers have {len(text):,} bytes, and at most {MAX_HEAD_BYTES:,} fit; "
            "send fewer or shorter ones"
        )
    return text


def _text(head: _RequestHead | _AnswerHead) -> bytes:
    """Returns a head as JSON, with the values that only Python's JSON has, if there are some."""
    measured = head.measurements if isinstance(head, _AnswerHead) else ()
    try:
        if all(math.isfinite(one.value) for one in measured):
            return _encoder.encode(head)
    except UnicodeEncodeError:  # lone surrogates, which handlers and callers may choose
        pass
    return json.dumps(msgspec.to_builtins(head), separators=(",", ":")).encode()


def _split(element: bytes) -> tuple[_AnswerHead, memoryview]:
    """Returns the head of an answer, and what follows it."""
    if len(element) < _LENGTH.size:
        raise HandlerCallError(f"it has {len(element)} bytes, too few for the length of a head")
    size = _LENGTH.unpack_from(element)[0]
    end = _LENGTH.size + size
    if size > MAX_HEAD_BYTES or end > len(element):
        raise HandlerCallError(f"its head has {size:,} bytes, and it has {len(element):,}")
    return _head_in(element[_LENGTH.size : end], _answer_decoder), memoryview(element)[end:]


def _head_in(text: bytes, decoder: "msgspec.json.Decoder[_Head]") -> _Head:
    """Decodes a head.

    Raises:
        HandlerCallError: it is none.
    """
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise HandlerCallError(f"its head is none: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(json.loads(text), decoder.type)
    except (ValueError, RecursionError) as error:
        raise HandlerCallError(f"its head is no JSON, or none: {error}") from error


_READY = b'{"id":"ready","headers":{},"parts":[]}'
GREETING = _LENGTH.pack(len(_READY)) + _READY
"""The request that asks whether the handler is initialized. It is no element of a caller's: `{"id`
would be the length of an id beyond `MAX_HEAD_BYTES`."""
GREETED = _encoded(_AnswerHead(200), [])
"""The answer to it, the golden row of every archive; plain answers begin so."""
