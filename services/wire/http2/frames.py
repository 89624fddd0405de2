"""Encodes and decodes HTTP/2 frames.

In: numbers and payloads. Out: frames, by RFC 9113 (sections 4 and 6). Nothing here has a state.
"""

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The client's connection preface (RFC 9113, 3.4)."""
HEAD_BYTES = 9
FIRST_FRAME_BYTES = 16_384
"""Default of the largest payload that a peer accepts, and the least that it may set."""
MAX_FRAME_BYTES = 256 * 1024
"""The largest payload of DATA taken, which peers are told: each frame costs a turn through the
code. A larger one would hold up the other calls of its connection on a slow network."""
MAX_OTHER_FRAME_BYTES = 64 * 1024
"""The largest payload of any other frame."""
PIECES_FROM_BYTES = FIRST_FRAME_BYTES
"""A DATA frame of this size is taken in pieces, as it is read."""
MAX_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535
CALL_WINDOW = 2**20
"""Window of the peer's DATA on each stream: what it may send of messages that are not taken. That
of a larger message is widened when its first bytes come, so it holds up no message whose network
takes less than this in a round trip."""
"""Initial window of a connection and of each call."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS = 0x1, 0x3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 0x4, 0x5, 0x6

HEAD = struct.Struct(">HBBBI")
"""A frame's head: its length in two parts (16 and 8 bits), kind, flags, stream."""
_SETTING = struct.Struct(">HI")
_STREAM_BITS = 0x7FFF_FFFF


class Fault(IntEnum):
    """Error codes of a connection or a stream (RFC 9113, 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ConnectionFaultError(Exception):
    """The peer breaks the protocol in a way that ends the connection.

    Args:
        fault: error code.
        words: message in the GOAWAY frame.
    """

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encodes one frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Encodes a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Decodes a SETTINGS frame, in its order.

    Raises:
        ConnectionFaultError: it is no list of settings, or a value is outside its range.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionFaultError(Fault.FRAME_SIZE_ERROR, "SETTINGS of an invalid length")
    found = list(_SETTING.iter_unpack(payload))
    for name, value in found:
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFaultError(Fault.FLOW_CONTROL_ERROR, "a window over 2^31-1")
        if name == MAX_FRAME_SIZE and not FIRST_FRAME_BYTES <= value < 1 << 24:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE out of range")
    return found


def reset(stream: int, fault: Fault) -> bytes:
    """Encodes a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, fault.to_bytes(4, "big"))


def window_update(stream: int, increment: int) -> bytes:
    """Encodes a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def goaway(last_stream: int, fault: Fault, words: str = "") -> bytes:
    """Encodes a GOAWAY frame."""
    payload = last_stream.to_bytes(4, "big") + fault.to_bytes(4, "big") + words.encode()
    return frame(GOAWAY, 0, 0, payload)


def number(payload: bytes) -> int:
    """Decodes the 31 bits of a WINDOW_UPDATE, whose length has been checked."""
    return int.from_bytes(payload, "big") & _STREAM_BITS


def unpadded(payload: bytes) -> bytes:
    """Removes the padding of a DATA or HEADERS payload that its flags announce.

    Raises:
        ConnectionFaultError: the padding is longer than the payload.
    """
    if not payload or payload[0] >= len(payload):
        raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "padding beyond the frame")
    return payload[1 : len(payload) - payload[0]]
