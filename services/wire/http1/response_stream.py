"""A response whose length is not known when it begins: pieces, sent as the peer reads them.

In: pieces of a body, any number. Out: chunks (RFC 9112, 7.1); to a client of HTTP/1.0 the pieces
themselves, ended by the end of the connection.

Rules:
- pieces wait for the responses before them on the connection, and while the peer does not read;
- `taken` is called once a piece is written, so that its producer goes on only as fast as the peer;
- what waits is charged to the exchange;
- a response that cannot be completed ends the connection, so that its client sees that.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from services.errors import UnsupportedError

CHUNKED = b"transfer-encoding: chunked\r\n"
EVENT_STREAM = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
"""Headers of server-sent events."""
_LAST_CHUNK = b"0\r\n\r\n"


class StreamedExchange(Protocol):
    """The interface of an exchange that a stream uses.

    Attributes:
        response: as in `Exchange`; None while the stream goes on.
        held_bytes: bytes charged to the exchange.
    """

    response: list[bytes | memoryview] | None
    held_bytes: int

    def reserve(self, size: int, holder_bytes: int = ...) -> None:
        """Reserves memory for what waits, or releases some if negative."""

    def finish(self, response: list[bytes | memoryview]) -> None:
        """Sends the last bytes of the response."""


class StreamedConnection(Protocol):
    """The interface of a connection that a stream uses, beside that of an exchange."""

    def may_write(self, exchange: Any) -> bool:
        """Returns True if it is an exchange's turn to be answered, and the peer reads."""

    def write_piece(self, piece: bytes) -> None:
        """Writes a piece of the response whose turn it is."""

    def break_off(self) -> None:
        """Ends the connection in the middle of a response."""


def event(data: bytes, kind: str = "") -> bytes:
    """Encodes a server-sent event.

    Args:
        data: text without line ends, such as JSON.
        kind: type of the event; empty for a `message`.

    Source: HTML Living Standard, 9.2 Server-sent events.
    """
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data) if kind else b"data: %b\n\n" % data


class ResponseStream:
    """The response of one exchange; made by `Exchange.respond_in_parts`.

    Args:
        exchange: exchange of the request.
        connection: its connection.
        head: status line and headers, with the empty line.
        is_chunked: True if pieces are framed as chunks.
    """

    __slots__ = (
        "_connection", "_ending", "_ends", "_exchange", "_is_broken", "_is_chunked", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        exchange: StreamedExchange,
        connection: StreamedConnection,
        head: bytes,
        is_chunked: bool,
    ) -> None:
        self._exchange = exchange
        self._connection = connection
        self._is_chunked = is_chunked
        self._ending = b""
        self._ends = self._is_broken = False
        self._waiting: deque[tuple[bytes, Callable[[], None]]] = deque([(head, _nothing)])

    def write(self, data: bytes, taken: Callable[[], None]) -> None:
        """Sends a piece of the body.

        Args:
            data: not empty.
            taken: called once the piece is written; never if the caller disconnects before.

        Raises:
            BufferFullError: there is no room for it to wait.
            ServingError: the caller has disconnected.
        """
        piece = self._framed(data)
        self._exchange.reserve(len(piece), self._exchange.held_bytes)
        self._waiting.append((piece, taken))
        self.proceed()

    def end(self, last: bytes = b"") -> None:
        """Ends the response behind the pieces before.

        Args:
            last: a last piece, such as an error; it is never refused, whatever the budget holds.
        """
        self._ending = self._framed(last) if last else b""
        self._ends = True
        self.proceed()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    def break_off(self) -> None:
        """Ends the connection behind the pieces before: the response is incomplete."""
        self._ends = self._is_broken = True
        self.proceed()

    def proceed(self) -> None:
        """Writes what waits, as far as the connection allows."""
        exchange, connection, waiting = self._exchange, self._connection, self._waiting
        while waiting and connection.may_write(exchange):
            piece, taken = waiting.popleft()
            if taken is not _nothing:
                exchange.reserve(-len(piece))
            connection.write_piece(piece)
            taken()
        if self._ends and not waiting and exchange.response is None:
            self._finish()

    def _finish(self) -> None:
        if self._is_broken:
            self._connection.break_off()
        else:
            ending = self._ending + _LAST_CHUNK if self._is_chunked else self._ending
            self._exchange.finish([ending] if ending else [])


def refuse_old(version: str) -> UnsupportedError:
    """Returns the error of a client that cannot be sent a response of unknown length."""
    return UnsupportedError(
        f"this response comes in parts, which HTTP/{version} ends only with the connection; "
        "send the request alone, or use HTTP/1.1"
    )


def _nothing() -> None:
    """The callback of a head."""
