"""Requests and answers of handlers, as elements of BYTES tensors. Pure.

A version of an archive has one input, `request`, and one output, `response`, both BYTES of one
element a row. An element is the length of a JSON head, 4 bytes little-endian; the head; and the
bytes that it describes. The door encodes requests and decodes answers; the process of the handler
does the opposite.

Rules: a head that does not describe its bytes exactly is an error; the greeting is answered by
the process itself, once its handler is initialized, and never reaches the handler.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a request's body; a raw body is one, named `BODY`."""

    name: str
    content_type: str
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRequest:
    """A request to a handler."""

    id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """A value that a handler measured: a metric of its own."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    unit: str
    value: float
    dimensions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerAnswer:
    """An answer of a handler to one request, or a part of it."""

    body: bytes | memoryview = b""
    status: int = 200
    phrase: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that the handler set; among them `content-type`, if it set one."""
    is_intermediate: bool = False
    """True if the handler sent it before its result."""
    failure: str = ""
    """The reason why there is no answer, in TorchServe's words; `status` is its code then."""
    measurements: Sequence[Measurement] = ()
    """Metrics of the whole batch, with its first answer."""
    dropped: int = 0
    """Number of further ones, which did not fit."""


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


def encode_request(request: HandlerRequest) -> bytes:
    """Returns a request as an element.

    Raises:
        HandlerCallError: its head is too large.
    """
    head = {
        "id": request.id,
        "headers": dict(request.headers),
        "parts": [[part.name, part.content_type, len(part.data)] for part in request.parts],
    }
    return _encoded(head, [part.data for part in request.parts])


def decode_request(element: bytes) -> HandlerRequest:
    """Returns the request in an element; its data are views of it.

    Raises:
        HandlerCallError: it is no request.
    """
    head, rest = _split(element)
    try:
        parts, at = [], 0
        for name, content_type, size in head["parts"]:
            parts.append(Part(name, content_type, rest[at : at + size]))
            at += size
        if at != len(rest) or any(size < 0 for _, _, size in head["parts"]):
            raise HandlerCallError(f"its parts have {at:,} bytes, and it has {len(rest):,}")
        return HandlerRequest(id=str(head["id"]), headers=dict(head["headers"]), parts=parts)
    except HandlerCallError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise HandlerCallError(f"it is no request to a handler: {error!r}") from error


def encode_answer(answer: HandlerAnswer) -> bytes:
    """Returns an answer as an element.

    Raises:
        HandlerCallError: its head is too large.
    """
    head: dict[str, Any] = {"status": answer.status}
    if answer.phrase:
        head["phrase"] = answer.phrase
    if answer.headers:
        head["headers"] = dict(answer.headers)
    if answer.is_intermediate:
        head["goes_on"] = True
    if answer.failure:
        head["failure"] = answer.failure
    if answer.measurements:
        head["measurements"] = [
            [one.name, one.kind, one.unit, one.value, dict(one.dimensions)]
            for one in answer.measurements
        ]
    if answer.dropped:
        head["dropped"] = answer.dropped
    return _encoded(head, [answer.body])


def decode_answer(element: bytes) -> HandlerAnswer:
    """Returns the answer in an element; its body is a view of it.

    Raises:
        HandlerCallError: it is no answer.
    """
    head, body = _split(element)
    try:
        return HandlerAnswer(
            body=body,
            status=int(head["status"]),
            phrase=head.get("phrase", ""),
            headers=head.get("headers", {}),
            is_intermediate=head.get("goes_on", False),
            failure=head.get("failure", ""),
            measurements=[Measurement(*values) for values in head.get("measurements", ())],
            dropped=int(head.get("dropped", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HandlerCallError(f"it is no answer of a handler: {error!r}") from error


def _encoded(head: Mapping[str, Any], data: Sequence[bytes | bytearray | memoryview]) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    if len(text) > MAX_HEAD_BYTES:
        raise HandlerCallError(
            f"its names and headers have {len(text):,} bytes, and at most {MAX_HEAD_BYTES:,} fit; "
            "send fewer or shorter ones"
        )
    return b"".join([_LENGTH.pack(len(text)), text, *data])


def _split(element: bytes) -> tuple[dict[str, Any], memoryview]:
    """Returns the head of an element, and what follows it."""
    if len(element) < _LENGTH.size:
        raise HandlerCallError(f"it has {len(element)} bytes, too few for the length of a head")
    size = _LENGTH.unpack_from(element)[0]
    end = _LENGTH.size + size
    if size > MAX_HEAD_BYTES or end > len(element):
        raise HandlerCallError(f"its head has {size:,} bytes, and it has {len(element):,}")
    try:
        head = json.loads(element[_LENGTH.size : end])
    except (ValueError, RecursionError) as error:
        raise HandlerCallError(f"its head is no JSON: {error}") from error
    if not isinstance(head, dict):
        raise HandlerCallError(f"its head is a {type(head).__name__}, and must be an object")
    return head, memoryview(element)[end:]


GREETING = encode_request(HandlerRequest(id="ready"))
"""The request that asks whether the handler is initialized: it has no parts and no headers."""
GREETED = encode_answer(HandlerAnswer())
"""The answer to it: the golden row of every archive."""
