"""HTTP/2 and gRPC as bytes: encodes attacks and decodes responses."""

import asyncio
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hpack import Decoder

from tests.adversarial.attack import Peer, Target

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
ACK, END_STREAM, END_HEADERS = 1, 1, 4
ENHANCE_YOUR_CALM = 11
FRAME_HEAD_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CALL_TIMEOUT_S = 30.0
_CODES = {"0": "OK", "3": "INVALID_ARGUMENT", "5": "NOT_FOUND", "8": "RESOURCE_EXHAUSTED"}
_CODES |= {"12": "UNIMPLEMENTED", "13": "INTERNAL", "14": "UNAVAILABLE", "16": "UNAUTHENTICATED"}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encodes an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def block(path: str, *fields: tuple[str, str]) -> bytes:
    """Encodes the header block of a gRPC call, as literals."""
    usual = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"))
    content = (("content-type", "application/grpc"), ("te", "trailers"))
    out = b""
    for name, value in (*usual, *content, *fields):
        assert max(len(name), len(value)) < 127
        out += b"\x00" + bytes([len(name)]) + name.encode()
        out += bytes([len(value)]) + value.encode()
    return out


def message(content: bytes, flag: int = 0) -> bytes:
    """Encodes a gRPC message as in DATA."""
    return bytes([flag]) + struct.pack(">I", len(content)) + content


def data_frames(stream: int, content: bytes) -> bytes:
    """Encodes DATA frames of one call."""
    at = range(0, len(content), 16_384)
    return b"".join(frame(DATA, 0, stream, content[begin : begin + 16_384]) for begin in at)


WIDE_OPEN = (
    PREFACE
    + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1))
    + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))
)
"""Preface of a client with unlimited windows."""


@dataclass(slots=True)
class Heard:
    """Frames received from a server on one connection.

    Attributes:
        frames: counts by kind.
        resets: counts of reset calls, by error.
        messages: DATA bytes of each call.
        statuses: status name of each ended call.
        parting: error of GOAWAY; None until it arrives.
    """

    frames: Counter[int] = field(default_factory=Counter)
    resets: Counter[int] = field(default_factory=Counter)
    messages: dict[int, bytes] = field(default_factory=dict)
    statuses: dict[int, str] = field(default_factory=dict)
    parting: int | None = None
    _decoder: Decoder = field(default_factory=Decoder)

    def take(self, kind: int, stream: int, payload: bytes) -> None:
        """Processes one frame."""
        self.frames[kind] += 1
        if kind == DATA:
            self.messages[stream] = self.messages.get(stream, b"") + payload
        elif kind == HEADERS:
            found: Any = dict(self._decoder.decode(payload))
            if "grpc-status" in found:
                code = found["grpc-status"]
                self.statuses[stream] = _CODES.get(code, code)
        elif kind == RST_STREAM:
            self.resets[struct.unpack(">I", payload)[0]] += 1
            self.statuses.setdefault(stream, "reset")
        elif kind == GOAWAY:
            self.parting = struct.unpack(">II", payload[:8])[1]

    async def listen(self, peer: Peer, calls: int = 0) -> None:
        """Reads until the connection ends, or that many calls have a status."""
        try:
            while not calls or len(self.statuses) < calls:
                head = await peer.reader.readexactly(FRAME_HEAD_BYTES)
                high, low, kind, _, stream = struct.unpack(">HBBBI", head)
                self.take(kind, stream, await peer.reader.readexactly(high << 8 | low))
        except (ConnectionError, asyncio.IncompleteReadError):
            return


async def call_all(
    target: Target, path: str, contents: list[bytes], *fields: tuple[str, str], flag: int = 0
) -> list[tuple[str, bytes]]:
    """Makes calls on one connection, each with one message.

    Args:
        target: server; it counts the responses.
        path: path of all calls.
        contents: one message for each call.
        fields: additional metadata.
        flag: compressed flag of the messages.

    Returns:
        Name of each call's status (`none` if there was none), and the message before it.
    """
    heard = Heard()
    async with target.connection(target.grpc_port) as peer:
        listening = asyncio.create_task(heard.listen(peer, len(contents)))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await peer.send(WIDE_OPEN)
                for stream, content in zip(range(1, 10**6, 2), contents, strict=False):
                    await peer.send(
                        frame(HEADERS, END_HEADERS, stream, block(path, *fields)),
                        data_frames(stream, message(content, flag)),
                        frame(DATA, END_STREAM, stream),
                    )
                await listening
        except TimeoutError:
            target.count("no answer")
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    found = [
        (heard.statuses.get(stream, "none"), heard.messages.get(stream, b"")[5:])
        for stream in range(1, 2 * len(contents), 2)
    ]
    for status, _ in found:
        target.count(status)
    return found
