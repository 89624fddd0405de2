"""One HTTP request and its answer: what a route makes of a head, and a connection writes in order.

A route is a function of the head that gives an `Opener`: it is asked once for each head that a
connection has not seen before, so whatever it works out is not paid for by every request.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import ClassVar, Protocol

import orjson

from services.errors import ServingError
from services.gateway.wire.body import Body
from services.gateway.wire.byte_budget import SMALL_BYTES, ByteBudget
from services.gateway.wire.compression import CompressionThread
from services.gateway.wire.http1.head import Head

JSON = b"content-type: application/json\r\n"

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_START = b"%b%b%bcontent-length: %d\r\n\r\n"
_WHOLE = _START + b"%b"
_CLOSE = b"connection: close\r\n"
_KEEP_ALIVE = b"connection: keep-alive\r\n"
_CHALLENGE = b"www-authenticate: Bearer\r\n"
_JOINED_BYTES = 16 * 1024
"""Up to this, one copy costs less than the system call's second buffer."""


class ExchangePort(Protocol):
    """What an exchange uses of its port."""

    @property
    def budget(self) -> ByteBudget:
        """The bytes that the process holds."""

    @property
    def compression(self) -> CompressionThread:
        """Compresses answers."""

    @property
    def date(self) -> bytes:
        """The Date header of this second."""

    @property
    def stopping(self) -> bool:
        """True once the port closes its connections."""


class ExchangeConnection(Protocol):
    """What an exchange uses of its connection."""

    @property
    def port(self) -> ExchangePort:
        """The port it belongs to."""

    def finish(self, exchange: "Exchange", response: list[bytes | memoryview]) -> None:
        """Writes the response when those before it are written."""

    def ends_with(self, exchange: "Exchange") -> bool:
        """Returns True if no request follows on the connection."""


class Exchange:
    """A request that is being answered.

    The connection calls `begin` once with the whole body, or `refuse` when the body cannot be had,
    and `abandon` when the caller hangs up before the answer. Whoever answers calls `respond` or
    `respond_error` once; after `abandon` that does nothing.

    Attributes:
        head: of the request.
        last: whether the connection ends with this answer.
        response: what to write, once it is known; empty when abandoned.
        held_bytes: of the budget, for its body until it has a response, and then for one whose
            turn has not come.
        counts_refusals: whether `refuse` counts what a limit refuses.
    """

    __slots__ = ("_connection", "head", "held_bytes", "last", "response")
    counts_refusals: ClassVar[bool] = False

    work_us: ClassVar[int] = 40
    """What it takes of the event loop's time until it is answered (`loop_turns.py`)."""
    is_quick: ClassVar[bool] = False
    """Whether it is answered at once, whatever the budget holds: as long as a server lives, it says
    so."""
    is_paced: ClassVar[bool] = False
    """Whether its own work has turns already, as inferences have (`request_pacer.py`)."""

    def __init__(self, connection: "ExchangeConnection", head: Head) -> None:
        self._connection = connection
        self.head = head
        self.last = not head.keep_alive
        self.held_bytes = 0
        self.response: list[bytes | memoryview] | None = None

    def body_limit(self, max_bytes: int) -> int:
        """The largest body that is waited for, or decompressed.

        Args:
            max_bytes: the port's limit.

        Raises:
            ServingError: no body of this caller is waited for.
        """
        return max_bytes

    def begin(self, body: Body) -> None:
        """Starts the work; the body is plain, whatever its Content-Encoding was."""
        raise NotImplementedError

    def refuse(self, error: ServingError) -> None:
        """The request has no body to work on: too large, broken, or too late."""
        self.respond_error(error)

    def abandon(self) -> None:
        """Nobody waits for the answer any more: it is over, without one."""
        self.response = []

    def reserve(self, size: int) -> None:
        """Takes memory for what a large request or answer needs, until it is answered.

        A negative number gives some of it back before.

        Raises:
            BufferFullError: there is no room.
            ServingError: it is over; nobody would give the memory back.
        """
        if self.response is not None:
            raise ServingError("the caller has gone")
        budget = self._connection.port.budget
        if size > 0:
            budget.take(size, SMALL_BYTES)
        else:
            budget.give(-size)
        self.held_bytes += size

    def release(self) -> None:
        """Gives back what is charged."""
        self._connection.port.budget.give(self.held_bytes)
        self.held_bytes = 0

    def compress(
        self,
        parts: Sequence[bytes | memoryview],
        encoding: str,
        done: Callable[[list[bytes]], None],
    ) -> None:
        """Compresses an answer, off the loop if it is large; calls back unless abandoned.

        Whoever made a large answer has charged the exchange for it.
        """
        budget = self._connection.port.budget

        def compressed(smaller: list[bytes]) -> None:
            if self.response is None:
                size = sum(map(len, smaller))
                budget.held_bytes += size - self.held_bytes
                self.held_bytes = size
                done(smaller)

        self._connection.port.compression.compress(parts, encoding, compressed)

    def respond(self, status: int, fields: bytes, parts: Sequence[bytes | memoryview]) -> None:
        """Answers.

        Args:
            status: an HTTP status.
            fields: header lines, each with its CRLF; Content-Length, Date and Connection are
                added here.
            parts: the body, in pieces; none of it is sent to a HEAD request.
        """
        connection = self._connection
        port = connection.port
        if self.last or port.stopping or not self.head.plain:
            fields = self._connection_field() + fields
        response: list[bytes | memoryview]
        if len(parts) == 1 and len(parts[0]) <= _JOINED_BYTES and self.head.plain:
            part = parts[0]  # as nearly every answer has
            response = [_WHOLE % (_STATUS_LINES[status], port.date, fields, len(part), part)]
        else:
            length = sum(map(len, parts))
            start = _START % (_STATUS_LINES[status], port.date, fields, length)
            if length <= _JOINED_BYTES and self.head.plain:
                response = [b"".join((start, *parts))]
            else:
                response = [start] if self.head.method == "HEAD" else [start, *parts]
        self.response = response
        connection.finish(self, response)

    def _connection_field(self) -> bytes:
        """The answer's Connection header, where HTTP/1.1 does not imply it."""
        if self._connection.port.stopping and self._connection.ends_with(self):
            self.last = True
        if self.last:
            return _CLOSE
        return _KEEP_ALIVE if self.head.version == "1.0" else b""

    def respond_error(self, error: ServingError, fields: bytes = b"") -> None:
        """Answers with an error, under its own status."""
        if error.retryable:
            fields = b"retry-after: %d\r\n%b" % (error.retry_after_s, fields)
        if error.http_status == 401:
            fields = _CHALLENGE + fields
        self.respond(error.http_status, JSON + fields, [self.error_content(error)])

    def error_content(self, error: ServingError) -> bytes:
        """Encodes an error as JSON, in the form of the exchange's protocol."""
        return error_body(error)


Opener = Callable[[ExchangeConnection, Head], Exchange]
Router = Callable[[Head], Opener]


def error_body(error: ServingError) -> bytes:
    """`{"error": message}`."""
    return orjson.dumps({"error": str(error)})
