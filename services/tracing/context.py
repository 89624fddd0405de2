"""The trace context that travels with a request.

Source: W3C Trace Context (https://www.w3.org/TR/trace-context/), 3.2: the header `traceparent`.
"""

import re
from typing import NamedTuple

import msgspec

TRACEPARENT = "traceparent"
"""The HTTP header and the gRPC metadata entry."""
SAMPLED = 0x01
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Trace context of a request whose spans are recorded; other requests have none."""

    trace_id: bytes
    """Id of the trace, 16 bytes."""
    span_id: bytes
    """Id of the edge's span, 8 bytes: the ancestor of all other spans."""
    parent_id: bytes
    """Id of the caller's span; empty if it sent none."""
    accepted_ns: int
    """Time at which the edge had the request, in nanoseconds since 1970."""


class TraceParent(NamedTuple):
    """Trace context that a caller sent."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def read_traceparent(text: str) -> TraceParent | None:
    """Parses the header; None for values that the standard says to ignore."""
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if (
        version == "ff"
        or (version == "00" and rest)
        or not (int(trace_id, 16) and int(span_id, 16))
    ):
        return None
    sampled = bool(int(flags, 16) & SAMPLED)
    return TraceParent(bytes.fromhex(trace_id), bytes.fromhex(span_id), sampled)
