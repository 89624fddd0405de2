"""What of a trace travels with a request.

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
    """Of a request whose spans are recorded; one that is not has none."""

    trace_id: bytes
    """16 bytes."""
    span_id: bytes
    """8 bytes: the edge's span, under which all others lie."""
    parent_id: bytes
    """The caller's span; empty if it named none."""
    accepted_ns: int
    """When the edge had the request, in nanoseconds since 1970."""


class Parent(NamedTuple):
    """What a caller said of its trace."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def read_traceparent(text: str) -> Parent | None:
    """Reads the header; None for what the standard says to take for no header at all."""
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
    return Parent(bytes.fromhex(trace_id), bytes.fromhex(span_id), sampled)
