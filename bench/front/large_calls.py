"""Clients of one large request at a time, each over one blocking socket, as cheap as Python allows.

In: a request. Out: the bytes of the answer, in memory that the next answer overwrites. All servers
get the same bytes from the same client.
"""

import socket
import struct
from typing import Protocol

from bench.front.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WIDE,
    WINDOW_UPDATE,
    call_block,
    frame,
    message,
)
from bench.peers.peer import PeerError

FIRST_WINDOW, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 65_535, 4, 5
"""RFC 9113, 6.5.2 and 6.9.2."""
FIRST_FRAME_BYTES = 2**14
OWN_FRAME_BYTES = 2**22
"""Largest frame that the client takes, as grpcio says too."""
READ_BYTES = 2**20
SPARE_BYTES = 2**16
"""Room for all of an answer but its tensor."""
HEADERS_END = b"\r\n\r\n"
LENGTH = b"content-length:"
PREFIX_BYTES = 5


class Caller(Protocol):
    """Sends one request at a time."""

    def call(self) -> memoryview:
        """Sends the request; returns the body of the answer, or its message.

        Raises:
            PeerError: the answer is no success.
        """


class RestCaller:
    """REST.

    Args:
        connection: connected socket.
        request: the whole request, head and body.
        answer_bytes: size of the tensors of the answer.
    """

    def __init__(self, connection: socket.socket, request: bytes, answer_bytes: int) -> None:
        self._socket, self._request = connection, request
        self._answer = memoryview(bytearray(answer_bytes + SPARE_BYTES))

    def call(self) -> memoryview:
        """Sends the request; see `Caller`."""
        self._socket.sendall(self._request)
        filled, start, end = 0, 0, len(self._answer)
        while filled < end:
            read = self._socket.recv_into(self._answer[filled:])
            if not read:
                raise PeerError("the server closed the connection")
            filled += read
            if not start:
                head, found, _ = bytes(self._answer[: min(filled, SPARE_BYTES)]).partition(
                    HEADERS_END
                )
                if found:
                    start = len(head) + len(HEADERS_END)
                    end = start + _length_of(head)
                    if not head.startswith(b"HTTP/1.1 200"):
                        raise PeerError(f"it answered {bytes(self._answer[: min(filled, 500)])!r}")
        return self._answer[start:end]


def _length_of(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(LENGTH):
            return int(line.removeprefix(LENGTH))
    raise PeerError(f"the answer has no length: {head[:500]!r}")


class GrpcCaller:
    """gRPC: `ModelInfer`, with the windows and frame sizes of the server.

    Args:
        connection: connected socket.
        content: serialised message.
        answer_bytes: size of the tensors of the answer.
    """

    def __init__(self, connection: socket.socket, content: bytes, answer_bytes: int) -> None:
        self._socket = connection
        self._message = memoryview(message(content))
        self._answer = memoryview(bytearray(answer_bytes + SPARE_BYTES))
        self._filled = self._unread = 0
        self._rest = b""
        self._stream = -1
        self._window, self._first_window = FIRST_WINDOW, FIRST_WINDOW
        self._credit, self._frame_bytes = 0, FIRST_FRAME_BYTES
        self._taken, self._is_over = 0, False
        own = struct.pack(">HIHI", INITIAL_WINDOW_SIZE, WIDE, MAX_FRAME_SIZE, OWN_FRAME_BYTES)
        widened = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDE - FIRST_WINDOW))
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, own) + widened)

    def call(self) -> memoryview:
        """Sends the request; see `Caller`."""
        self._stream += 2
        self._filled, self._is_over, self._credit = 0, False, self._first_window
        head = frame(HEADERS, END_HEADERS, self._stream, call_block("ModelInfer"))
        sent, size = 0, len(self._message)
        while sent < size:
            room = min(self._window, self._credit, self._frame_bytes, size - sent)
            if room <= 0:
                self._read()
                continue
            flags = END_STREAM if sent + room == size else 0
            head += HEAD.pack(room >> 8, room & 0xFF, DATA, flags, self._stream)
            self._send(head, self._message[sent : sent + room])
            head, sent = b"", sent + room
            self._window -= room
            self._credit -= room
        while not self._is_over:
            self._read()
        if self._taken > WIDE // 2:
            self._socket.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken)))
            self._taken = 0
        if self._filled <= PREFIX_BYTES:
            raise PeerError("the answer has no message")
        return self._answer[PREFIX_BYTES : self._filled]

    def _send(self, head: bytes, part: memoryview) -> None:
        sent = self._socket.sendmsg([head, part])
        if sent < len(head):
            self._socket.sendall(head[sent:])
            sent = len(head)
        self._socket.sendall(part[sent - len(head) :])

    def _read(self) -> None:
        """Reads once, and takes what has come: frames of DATA in parts, others whole."""
        read = self._socket.recv(READ_BYTES)
        if not read:
            raise PeerError("the server closed the connection")
        data, position = memoryview(self._rest + read if self._rest else read), 0
        while position < len(data):
            if self._unread:
                part = data[position : position + self._unread]
                self._answer[self._filled : self._filled + len(part)] = part
                self._filled += len(part)
                self._unread -= len(part)
                position += len(part)
                continue
            if len(data) - position < HEAD_BYTES:
                break
            high, low, kind, flags, stream = HEAD.unpack_from(data, position)
            size, start = high << 8 | low, position + HEAD_BYTES
            if kind == DATA:
                position, self._unread = start, size
                self._taken += size
                continue
            if start + size > len(data):
                break
            self._take(kind, flags, stream, bytes(data[start : start + size]))
            position = start + size
        self._rest = bytes(data[position:])

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (RST_STREAM, GOAWAY):
            raise PeerError(f"the server sent {kind} {payload!r}")
        if kind == HEADERS and flags & END_STREAM:
            self._is_over = True
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE and stream == self._stream:
            self._credit += int.from_bytes(payload, "big")
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == MAX_FRAME_SIZE:
                    self._frame_bytes = value
                elif name == INITIAL_WINDOW_SIZE:
                    self._credit += value - self._first_window
                    self._first_window = value
            self._socket.sendall(frame(SETTINGS, ACK, 0))
