"""Runs an ASGI application behind our own HTTP server, for endpoints off the hot path.

In: an exchange with its whole body. Out: the application's response: collected and sent at once, or
piece by piece, as fast as the client reads, if it has no Content-Length.
Not offered: requests in pieces, lifespan, websockets. Offered besides: `RESERVE` in the scope.

Source: ASGI specification 3.0, HTTP connection scope.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Protocol

from services.errors import ServingError
from services.wire.body import SMALL_BODY_BYTES, Body
from services.wire.compression import MIN_COMPRESSED_BYTES, accepted_encoding
from services.wire.http1.exchange import Exchange, ExchangeConnection, Opener
from services.wire.http1.head import Head
from services.wire.http1.response_stream import ResponseStream

logger = logging.getLogger("flambeau.http")

Message = MutableMapping[str, Any]
Application = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]

RESERVE = "flambeau.reserve"
"""Key of the scope: a function that takes memory for a large response (`Exchange.reserve`)."""
_BODILESS = (204, 304)
"""Statuses whose responses have no body."""
_OURS = (b"content-length", b"connection", b"date", b"transfer-encoding")
"""Headers the server writes itself."""


class BodyGate(Protocol):
    """Decides whose body is awaited."""

    def admit(self, head: Head, peer: str) -> None:
        """Checks a client by the head of its request and its address.

        Raises:
            ServingError: its body is not awaited.
        """

    def refused(self, head: Head, peer: str, error: ServingError) -> None:
        """Hears of a request that was refused before the application saw it."""


def asgi_opener(
    application: Application,
    *,
    reads_bodies: bool = False,
    streams: bool = False,
    compresses: bool = True,
    gate: BodyGate | None = None,
    most_bytes: int | None = None,
) -> Opener:
    """Returns the opener of an application's exchanges.

    Args:
        application: ASGI application.
        reads_bodies: True for bodies up to the port's limit; else a few KiB.
        streams: True for responses that may last for hours: the connection takes no further request
            meanwhile.
        compresses: False for responses that are never compressed.
        gate: decides whose body is awaited; the application checks clients itself, too.
        most_bytes: limit of the bodies that are read, below the port's; None for the port's.
    """
    if reads_bodies:
        return partial(_ReadingExchange, gate, most_bytes, application)
    if streams:
        return partial(_StreamedExchange, application)
    return partial(_AsgiExchange if compresses else _PlainExchange, application)


class _AsgiExchange(Exchange):
    __slots__ = (
        "_application",
        "_fields",
        "_gone",
        "_is_running",
        "_parts",
        "_received",
        "_status",
        "_taken",
        "_task",
    )
    work_us = 200
    header_us = 12
    """A framework reads the list of headers many times: 245 headers take it 3 ms."""
    compresses = True

    def __init__(
        self, application: Application, connection: ExchangeConnection, head: Head
    ) -> None:
        super().__init__(connection, head)
        self._application = application
        self._gone = asyncio.Event()
        self._is_running = False
        self._status = 0
        self._fields = b""
        self._parts: list[bytes | memoryview] = []
        self._taken: asyncio.Future[None] | None = None

    @property
    def outlives_caller(self) -> bool:
        """True while the application runs: it holds its body and what it makes of it."""
        return self._is_running

    def body_limit(self, max_bytes: int) -> int:
        """Returns a few KiB, which the application ignores."""
        return min(max_bytes, SMALL_BODY_BYTES)

    def begin(self, body: Body) -> None:
        """Starts the application's task, the only one of a request."""
        self._received: Message | None = {"type": "http.request", "body": body}
        self._is_running = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    def abandon(self) -> None:
        """Marks the exchange as disconnected, which the application can query; it may finish."""
        Exchange.abandon(self)
        self._gone.set()
        self._piece_was_taken()

    async def _run(self) -> None:
        try:
            scope = _scope(self.head, self._connection.peer) | {RESERVE: self.reserve}
            await self._application(scope, self._receive, self._send)
            if not self._status:
                raise RuntimeError("the application gave no response")
        except Exception as error:
            facts = {"path": self.head.path[:200]}
            reason = refusal_in(error) if self.stream is not None else None
            if reason is None:
                logger.exception("the application failed", extra=facts)
            else:  # too late for a status: the connection ends
                logger.warning("a response was broken off", extra={**facts, "reason": str(reason)})
        self._is_running = False
        if self.response is not None:  # it is sent, or its caller has disconnected
            self.release()
            return
        if self.stream is not None:
            self.stream.break_off()  # it was not ended
            return
        if not self._status:
            self.respond_error(ServingError("internal error; see the server's log"))
            return
        encoding = ""
        if self.compresses and sum(map(len, self._parts)) >= MIN_COMPRESSED_BYTES:
            encoding = accepted_encoding(self.head.text("accept-encoding") or "")
        if encoding:
            self._fields += b"content-encoding: %b\r\n" % encoding.encode()
            self.compress(self._parts, encoding, self._respond)
        else:
            self._respond(self._parts)

    def _respond(self, parts: Sequence[bytes | memoryview]) -> None:
        self.respond(self._status, self._fields, parts)

    async def _receive(self) -> Message:
        message, self._received = self._received, None
        if message is None:
            await self._gone.wait()
            message = {"type": "http.disconnect"}
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._fields = b"".join(
                _field(name, value)
                for name, value in message.get("headers", ())
                if name.lower() not in _OURS
            )
            self._status = message["status"]
            names = [name.lower() for name, _ in message.get("headers", ())]
            if b"content-length" not in names and self._status not in _BODILESS:
                self._begin_stream()
        elif message["type"] == "http.response.body":
            body, goes_on = message.get("body", b""), message.get("more_body", False)
            if self.stream is not None:
                await self._send_piece(self.stream, body, goes_on)
            elif self.response is not None:
                await asyncio.sleep(0)  # an application whose client has gone is cancelled here
            elif body:
                self._parts.append(body)

    def _begin_stream(self) -> None:
        """Sends the head of a response of unknown length, if there is a client."""
        if self.response is not None:
            return
        if self.head.method == "HEAD":
            self.respond(self._status, self._fields, [])
            self._gone.set()
            return
        try:
            self.respond_in_parts(self._status, self._fields)
        except ServingError as error:
            self.respond_error(error)
            self._gone.set()

    async def _send_piece(self, stream: ResponseStream, body: bytes, goes_on: bool) -> None:
        """Sends a piece, and waits until it is written."""
        if body:
            taken = self._taken = asyncio.get_running_loop().create_future()
            stream.write(body, self._piece_was_taken)
            await taken
            await asyncio.sleep(0)  # what was taken at once did not wait: others have their turn
        if not goes_on and self.response is None:
            stream.end()

    def _piece_was_taken(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None and not taken.done():
            taken.set_result(None)


def refusal_in(error: BaseException) -> ServingError | None:
    """Returns the refusal that an error is or comes from, if any; frameworks wrap it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ServingError):
        seen = seen.__cause__ or seen.__context__
    return seen


class _StreamedExchange(_AsgiExchange):
    __slots__ = ()
    is_alone = True


class _PlainExchange(_AsgiExchange):
    __slots__ = ()
    compresses = False


class _ReadingExchange(_AsgiExchange):
    __slots__ = ("_gate", "_most_bytes")

    def __init__(
        self,
        gate: BodyGate | None,
        most_bytes: int | None,
        application: Application,
        connection: ExchangeConnection,
        head: Head,
    ) -> None:
        super().__init__(application, connection, head)
        self._gate = gate
        self._most_bytes = most_bytes

    def body_limit(self, max_bytes: int) -> int:
        """Returns the limit, for a client that is admitted."""
        if self._gate is not None:
            self._gate.admit(self.head, self._connection.peer)
        return max_bytes if self._most_bytes is None else min(max_bytes, self._most_bytes)

    def refuse(self, error: ServingError) -> None:
        """Refuses the request, and says so to the gate."""
        if self._gate is not None:
            self._gate.refused(self.head, self._connection.peer, error)
        super().refuse(error)


def _scope(head: Head, peer: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "method": head.method,
        "scheme": "http",
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
        "root_path": "",
        "headers": head.headers,
        "client": (peer, 0),
    }


def _field(name: bytes, value: bytes) -> bytes:
    """Formats a header line. A line end within it would inject a second header."""
    if b"\r" in name + value or b"\n" in name + value:
        raise ValueError(f"a line end in the header {name[:40]!r}")
    return b"%b: %b\r\n" % (name, value)
