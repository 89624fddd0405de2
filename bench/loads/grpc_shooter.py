"""gRPC calls over a few HTTP/2 connections, one message each way.

In: canned messages. Out: for each one sent, one callback with its outcome and the response bytes.
A `grpc.aio` call takes this core longer than it takes the server, so the client would be measured.
Frames, header blocks and windows are read and written by the server's own modules; the server's
tests verify those against third-party clients.

Sources: RFC 9113, and https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

import asyncio
from collections.abc import Sequence
from typing import cast
from urllib.parse import unquote

import grpc

from bench.loads.shooter import Answered, Outcome
from bench.peers.load import PREFIX_BYTES, grpc_message
from bench.peers.peer import Ask
from services.wire.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFaultError,
    Fault,
    frame,
    number,
    read_settings,
    reset,
    settings,
    unpadded,
    window_update,
)
from services.wire.http2.headers import HeaderBlocks, write
from services.wire.http2.sending import Sending, Unsent

CONNECTIONS = 8
MAX_KNOWN_BLOCKS = 256
_GREETING = (
    PREFACE
    + settings({HEADER_TABLE_SIZE: 0, INITIAL_WINDOW_SIZE: MAX_WINDOW})
    + window_update(0, MAX_WINDOW - FIRST_WINDOW)
)
_CODES = {str(code.value[0]).encode(): code for code in grpc.StatusCode}
_OUTCOMES = {
    grpc.StatusCode.OK: Outcome.ANSWERED,
    grpc.StatusCode.INVALID_ARGUMENT: Outcome.WRONG,
    grpc.StatusCode.NOT_FOUND: Outcome.WRONG,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Outcome.REFUSED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Outcome.EXPIRED,
}


class _Call:
    """One call, and the flow-control state of its message (see `Sender`)."""

    __slots__ = ("answer", "answered", "connection", "credit", "has_moved", "id", "place", "unsent")

    def __init__(self, place: int, answered: Answered) -> None:
        self.place = place
        self.answered = answered
        self.connection: _Connection
        self.id = self.credit = 0
        self.has_moved = False
        self.unsent: Unsent | None = None
        self.answer = b""

    def drained(self) -> None:
        """Does nothing: the message is whole."""


class _Connection(asyncio.Protocol):
    """One connection; calls submitted before it is open wait."""

    def __init__(self, owner: "GrpcShooter") -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._waiting: list[_Call] = []
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._data = b""
        self._read_bytes = 0
        self._blocks = HeaderBlocks()
        self._known: dict[bytes, tuple[Outcome, bytes]] = {}
        self.takes_calls = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._transport.write(_GREETING)
        self._sending = Sending(self._transport.write, lambda call: None)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self.send(call)

    def send(self, call: _Call) -> None:
        """Starts a call, or queues it until the connection is open."""
        call.connection = self
        if self._transport is None:
            self._waiting.append(call)
            return
        call.id, self._next = self._next, self._next + 2
        self._calls[call.id] = call
        fields, message = self._owner.requests[call.place]
        beginning, size = frame(HEADERS, END_HEADERS, call.id, fields), len(message)
        if self._sending.fits(call, size):
            head = HEAD.pack(size >> 8, size & 0xFF, DATA, END_STREAM, call.id)
            self._transport.write(b"".join((beginning, head, message)))
        else:
            self._transport.write(beginning)
            self._sending.send(call, [memoryview(message)], frame(DATA, END_STREAM, call.id))

    def leave(self, call: _Call) -> None:
        """Cancels a call unless it has ended."""
        if call in self._waiting:
            self._waiting.remove(call)
        elif self._forget(call.id) and self._transport is not None:
            self._transport.write(reset(call.id, Fault.CANCEL))

    def abort(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        position, size = 0, len(data)
        try:
            while size - position >= HEAD_BYTES:
                high, low, kind, flags, stream = HEAD.unpack_from(data, position)
                end = position + HEAD_BYTES + (high << 8 | low)
                if end > size:
                    break
                self._take(kind, flags, stream, data[position + HEAD_BYTES : end])
                position = end
        except ConnectionFaultError as error:
            self.end(str(error))
        self._data = data[position:]

    def connection_lost(self, error: Exception | None) -> None:
        self.end(f"connection lost: {error}")

    def end(self, why: str) -> None:
        """Stops sending; fails all calls in flight."""
        self.takes_calls = False
        self.abort()
        self._owner.forget(self)
        calls = [*self._waiting, *self._calls.values()]
        self._waiting, self._calls = [], {}
        for call in calls:
            call.answered(Outcome.FAILED, why.encode())

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._take_data(flags, stream, payload)
        elif kind == HEADERS:
            if flags & ~(END_STREAM | END_HEADERS) or not flags & END_HEADERS:
                raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "HEADERS of more than one frame")
            outcome, why = self._known.get(payload) or self._learn(payload)
            if flags & END_STREAM and (call := self._forget(stream)):
                answer = call.answer[PREFIX_BYTES:]
                call.answered(outcome, answer if outcome is Outcome.ANSWERED else why)
        elif kind == RST_STREAM:
            if call := self._forget(stream):
                call.answered(Outcome.FAILED, f"reset: {number(payload)}".encode())
        else:
            self._take_other(kind, flags, stream, payload)

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        assert self._transport is not None
        self._read_bytes += len(payload)
        if self._read_bytes > MAX_WINDOW // 2:
            self._transport.write(window_update(0, self._read_bytes))
            self._read_bytes = 0
        if call := self._calls.get(stream):
            call.answer += unpadded(payload) if flags & PADDED else payload

    def _take_other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == SETTINGS and not flags & ACK:
            found = dict(read_settings(payload))
            self._transport.write(frame(SETTINGS, ACK, 0))
            self._sending.take_settings(found.get(INITIAL_WINDOW_SIZE), found.get(MAX_FRAME_SIZE))
        elif kind == WINDOW_UPDATE and not stream:
            self._sending.widen(number(payload))
        elif kind == WINDOW_UPDATE and (call := self._calls.get(stream)):
            self._sending.widen_call(call, number(payload))
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self._leave_calls_behind(number(payload[:4]))

    def _leave_calls_behind(self, last: int) -> None:
        """Handles GOAWAY: calls that the server has not begun are sent again, RFC 9113, 6.8."""
        self.takes_calls = False
        for stream in [stream for stream in self._calls if stream > last]:
            call = self._calls[stream]
            self._forget(stream)
            call.credit = 0
            self._owner.begin(call)

    def _learn(self, block: bytes) -> tuple[Outcome, bytes]:
        """Returns the outcome and the message in a header block; caches final blocks."""
        fields, lasts = self._blocks.read(block)
        found = dict(fields)
        code = _CODES.get(found.get(b"grpc-status", b""), grpc.StatusCode.UNKNOWN)
        details = unquote(found.get(b"grpc-message", b"").decode())
        known = _OUTCOMES.get(code, Outcome.FAILED), f"{code}: {details}".encode()
        if lasts and len(self._known) < MAX_KNOWN_BLOCKS:
            self._known[block] = known
        return known

    def _forget(self, stream: int) -> _Call | None:
        call = self._calls.pop(stream, None)
        if call is not None:
            self._sending.forget(call)
        return call


class GrpcShooter:
    """Calls over a few connections; responses are not parsed.

    Calls beyond the server's stream limit for a connection fail.

    Args:
        address: host:port.
        asks: requests to send.
        timeout_s: deadline sent with each call; None for none.

    Attributes:
        requests: header block and message, with its prefix, of each request.
    """

    def __init__(self, address: str, asks: Sequence[Ask], timeout_s: float | None) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self.requests = [(_fields(address, ask, timeout_s), grpc_message(ask)) for ask in asks]
        self._connections: list[_Connection | None] = [None] * CONNECTIONS
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent = 0

    def send(self, number: int, answered: Answered) -> None:
        """Sends one request; see `Shooter`."""
        self.begin(_Call(number % len(self.requests), answered))

    def begin(self, call: _Call) -> None:
        """Assigns a call to the next connection in turn; opens one if it is missing."""
        self._sent += 1
        turn = self._sent % CONNECTIONS
        connection = self._connections[turn]
        if connection is None or not connection.takes_calls:
            connection = self._connections[turn] = _Connection(self)
            task = asyncio.get_running_loop().create_task(self._connect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        connection.send(call)

    async def _connect(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        self._open.add(connection)
        try:
            await loop.create_connection(lambda: connection, self._host, self._port)
        except OSError as error:
            connection.end(f"cannot connect: {error}")

    def forget(self, connection: _Connection) -> None:
        """Removes a closed connection."""
        self._open.discard(connection)

    async def send_and_leave(self, number: int, patience_s: float) -> None:
        """Sends one request and cancels it; see `Shooter`."""
        call = _Call(number % len(self.requests), lambda outcome, body: None)
        self.begin(call)
        await asyncio.sleep(patience_s)
        call.connection.leave(call)

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # in this turn the sockets are closed


def _fields(address: str, ask: Ask, timeout_s: float | None) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", ask.path),
        (":authority", address),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    if timeout_s is not None:
        fields.append(("grpc-timeout", f"{timeout_s * 1e6:.0f}u"))
    return write(fields)
