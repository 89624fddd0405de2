"""A client of gRPC as cheap as Python allows: frames over one blocking socket.

In: serialised messages. Out: how many answers came. It keeps a number of requests in flight, on one
stream or each as a call of its own, and reads frames without their contents.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bench.peers.peer import PeerError

DATA, HEADERS, RST_STREAM, GOAWAY, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 7, 4, 6, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
HEAD = struct.Struct(">HBBBI")
HEAD_BYTES = 9
WIDE = 2**31 - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
READ_BYTES = 2**18
TIMEOUT_S = 60.0
SERVICE = "/inference.GRPCInferenceService"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encodes a frame."""
    return HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def message(content: bytes) -> bytes:
    """Encodes a message as in DATA."""
    return b"\x00" + len(content).to_bytes(4, "big") + content


def call_block(method: str) -> bytes:
    """Encodes the header block of a call."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": f"{SERVICE}/{method}", ":authority": "bench",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    coded = b""
    for name, value in fields.items():
        coded += b"\x10" + bytes((len(name),)) + name.encode()
        coded += bytes((len(value),)) + value.encode()
    return coded


class FrameClient:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        self._next_stream = 1
        first = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WIDE))
        widened = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDE - 65_535))
        connection.sendall(PREFACE + first + widened)

    def unary(self, content: bytes, count: int, in_flight: int) -> None:
        """Makes calls, each with one message and one answer."""
        head, data = call_block("ModelInfer"), message(content)

        def calls(number: int) -> bytes:
            parts = []
            for _ in range(number):
                stream = self._new_stream()
                parts.append(frame(HEADERS, END_HEADERS, stream, head))
                parts.append(frame(DATA, END_STREAM, stream, data))
            return b"".join(parts)

        sent = min(in_flight, count)
        self._socket.sendall(calls(sent))
        answered = 0
        while answered < count:
            ended = sum(kind == HEADERS and flags & END_STREAM for kind, flags in self._frames())
            answered += ended
            more = min(ended, count - sent)
            if more:
                sent += more
                self._socket.sendall(calls(more))

    def streamed(self, content: bytes, count: int, in_flight: int, answers: int = 1) -> None:
        """Sends messages on one stream, each with so many answers, and ends it."""
        stream, data = self._new_stream(), message(content)
        one = frame(DATA, 0, 0, data)[:5] + stream.to_bytes(4, "big") + data
        sent = min(in_flight, count)
        head = frame(HEADERS, END_HEADERS, stream, call_block("ModelStreamInfer"))
        self._socket.sendall(head + one * sent)
        answered = 0
        while answered < count * answers:
            found = sum(kind == DATA for kind, _ in self._frames())
            before, answered = answered, answered + found
            more = min(answered // answers - before // answers, count - sent)
            if more:
                sent += more
                self._socket.sendall(one * more)
        self._socket.sendall(frame(DATA, END_STREAM, stream))
        while not any(kind == HEADERS and flags & END_STREAM for kind, flags in self._frames()):
            pass

    def _new_stream(self) -> int:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        return stream

    def _frames(self) -> Iterator[tuple[int, int]]:
        """Reads once; yields kind and flags of each whole frame."""
        read = self._socket.recv(READ_BYTES)
        if not read:
            raise PeerError("the server closed the connection")
        data, position = self._rest + read, 0
        while position + HEAD_BYTES <= len(data):
            high, low, kind, flags, _ = HEAD.unpack_from(data, position)
            end = position + HEAD_BYTES + (high << 8 | low)
            if end > len(data):
                break
            if kind in (RST_STREAM, GOAWAY):
                raise PeerError(f"the server sent {data[position:end]!r}")
            if kind == PING and not flags & ACK:
                self._socket.sendall(frame(PING, ACK, 0, data[position + HEAD_BYTES : end]))
            elif kind == SETTINGS and not flags & ACK:
                self._socket.sendall(frame(SETTINGS, ACK, 0))
            position = end
            yield kind, flags
        self._rest = data[position:]


@contextmanager
def frame_client(address: str) -> Iterator[FrameClient]:
    """Opens a connection to `host:port`."""
    with connect(address) as connection:
        yield FrameClient(connection)


def connect(address: str) -> socket.socket:
    """Opens a socket to `host:port`."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
