"""One HTTP request and its response: opened by a route, written in order by a connection.

A route is a function from a head to an `Opener`: it is called once for each head that was not
seen before, so requests with a known head do not repeat its work.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import ClassVar, Protocol

import orjson

from services.errors import ServingError, UnsupportedError
from services.wire.body import Body
from services.wire.byte_budget import SMALL_BYTES, ByteBudget
from services.wire.compression import CompressionThread
from services.wire.http1.head import Head
from services.wire.http1.response_stream import (
    CHUNKED,
    ResponseStream,
    StreamedConnection,
    refuse_old,
)

JSON = b"content-type: application/json\r\n"

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES = {
    code: f"HTTP/1.1 {code} {_PHRASES.get(code, '')}\r\n".encode() for code in range(100, 600)
}
_START = b"%b%b%bcontent-length: %d\r\n\r\n"
_WHOLE = _START + b"%b"
_HEAD = b"%b%b%b\r\n"
_CLOSE = b"connection: close\r\n"
_KEEP_ALIVE = b"connection: keep-alive\r\n"
_CHALLENGE = b"www-authenticate: Bearer\r\n"
_JOINED_BYTES = 16 * 1024
"""Up to this, one copy costs less than the system call's second buffer."""


class ExchangePort(Protocol):
    """The interface of a port that an exchange uses."""

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


class ExchangeConnection(StreamedConnection, Protocol):
    """The interface of a connection that an exchange uses."""

    @property
    def port(self) -> ExchangePort:
        """The port it belongs to."""

    @property
    def peer(self) -> str:
        """The address of the client."""

    def finish(self, exchange: "Exchange", response: list[bytes | memoryview]) -> None:
        """Writes the response when those before it are written."""

    def ends_with(self, exchange: "Exchange") -> bool:
        """Returns True if no request follows on the connection."""


class Exchange:
    """A request that is being answered.

    The connection calls `begin` once with the whole body, or `refuse` if the body is unusable, and
    `abandon` when the caller disconnects before the response. The handler calls `respond` or
    `respond_error` once; after `abandon` that does nothing.

    Attributes:
        head: head of the request.
        last: True if the connection ends with this response.
        response: buffers to write, once known; empty when abandoned.
        held_bytes: bytes charged for its body until it has a response, and then for a response
            whose turn has not come.
        stream: the response while it is sent in pieces.
        counts_refusals: True if `refuse` counts refusals by limits.
    """

    __slots__ = ("_connection", "head", "held_bytes", "last", "response", "stream")
    counts_refusals: ClassVar[bool] = False

    work_us: ClassVar[int] = 40
    """Event loop time until its response (`loop_turns.py`)."""
    header_us: ClassVar[int] = 0
    """The same for each header, beside that."""
    is_quick: ClassVar[bool] = False
    """True if it is answered at once, whatever the budget holds: a live server always reports
    it."""
    is_alone: ClassVar[bool] = False
    """True if no further request of the connection is taken before it is answered: its response may
    last for hours."""
    decompresses: ClassVar[bool] = True
    """True if it takes a body without its compression; False for the bytes as they were sent."""
    is_paced: ClassVar[bool] = False
    """True if its work is already paced, as that of inferences is (`request_pacer.py`)."""

    def __init__(self, connection: "ExchangeConnection", head: Head) -> None:
        self._connection = connection
        self.head = head
        self.last = not head.keep_alive
        self.held_bytes = 0
        self.response: list[bytes | memoryview] | None = None
        self.stream: ResponseStream | None = None

    @property
    def outlives_caller(self) -> bool:
        """True if its work goes on without its caller; it then releases its bytes itself."""
        return False

    def body_limit(self, max_bytes: int) -> int:
        """Returns the largest body that is received, or decompressed.

        Args:
            max_bytes: the port's limit.

        Raises:
            ServingError: no body of this caller is accepted.
        """
        return max_bytes

    def begin(self, body: Body) -> None:
        """Starts the work; the body is plain, whatever its Content-Encoding was."""
        raise NotImplementedError

    def refuse(self, error: ServingError) -> None:
        """Refuses the request: its body is too large, malformed, or too late."""
        self.respond_error(error)

    def abandon(self) -> None:
        """Ends the exchange without a response: the caller has disconnected."""
        self.response = []
        self.stream = None

    def reserve(self, size: int, holder_bytes: int = SMALL_BYTES) -> None:
        """Reserves memory for a large request or response, until it is answered.

        A negative number releases some of it earlier.

        Args:
            size: number of bytes.
            holder_bytes: bytes that it holds, if it may be a small one.

        Raises:
            BufferFullError: there is no room.
            ServingError: the exchange is over; the memory would never be released.
        """
        if self.response is not None:
            raise ServingError("the caller has disconnected")
        self._connection.port.budget.reserve(size, holder_bytes)
        self.held_bytes += size

    def release(self) -> None:
        """Releases the charged bytes."""
        self._connection.port.budget.give(self.held_bytes)
        self.held_bytes = 0

    def compress(
        self,
        parts: Sequence[bytes | memoryview],
        encoding: str,
        done: Callable[[list[bytes]], None],
    ) -> None:
        """Compresses a response, off the loop if it is large; calls back unless abandoned.

        A large response must already be charged to the exchange.
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
        """Sends the response.

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

    def respond_in_parts(self, status: int, fields: bytes) -> ResponseStream:
        """Begins a response of unknown length.

        Args:
            status: an HTTP status.
            fields: as in `respond`.

        Raises:
            UnsupportedError: the client cannot tell where it ends, or asked for a head alone.
        """
        connection = self._connection
        port = connection.port
        if self.head.method == "HEAD":
            raise UnsupportedError("this path has no response to HEAD; use another method")
        is_chunked = self.head.version != "1.0"
        if not (is_chunked or self.last or connection.ends_with(self)):
            raise refuse_old(self.head.version)
        self.last |= not is_chunked
        fields = self._connection_field() + fields
        if is_chunked:
            fields = CHUNKED + fields
        head = _HEAD % (_STATUS_LINES[status], port.date, fields)
        self.stream = ResponseStream(self, connection, head, is_chunked)
        self.stream.proceed()
        return self.stream

    def finish(self, response: list[bytes | memoryview]) -> None:
        """Sends the last bytes of a response in pieces."""
        self.response = response
        self.stream = None  # they refer to each other
        self._connection.finish(self, response)

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
