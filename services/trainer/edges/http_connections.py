"""Connections of the trainer's REST port: uvicorn's, with limits for idle and slow peers.

uvicorn counts every connection against its limit, and waits for a first request without a timeout.
Rules:
- there are timeouts for a peer to start a request, to complete it, and to read the response;
- a connection over the limit replaces the one that has waited longest for its peer; a connection
  whose request is being answered is kept, and if all are, the new one is refused;
- the size of a request head is limited.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

logger = logging.getLogger("flambeau.trainer")

MAX_HEAD_BYTES = 64 * 1024
SPARE_CONNECTIONS = 64
"""Connections beyond the limit that still receive an error response; more are dropped."""

Awaited = Literal["", "request", "peer"]
"""Awaited event of a connection: none, as a request is being answered; the first byte of a request;
or the peer, to send the rest or to read the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of the port; see the settings of the same names."""

    max_connections: int
    keep_alive_timeout_s: float
    receive_timeout_s: float


class LimitedConnection(HttpToolsProtocol):
    """One connection.

    Args:
        limits: limits of the port.
        closed: counter of closed connections, by `reason`: slow or full.
        given: arguments of uvicorn.
    """

    def __init__(self, limits: HttpLimits, closed: Counter, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._closed = closed
        self._receiving = False
        self._head_bytes = -1
        """Bytes of the head that is being received; -1 while none is."""
        self._awaited: Awaited = ""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Handles a new connection: makes room if there are too many, and starts the timer."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._make_room()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the end of the connection: stops the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Passes received bytes to the parser, and limits the size of the head."""
        super().data_received(data)
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._head_bytes = -1
                self.send_400_response(f"The URL and headers are over {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Handles the start of a request."""
        super().on_message_begin()
        self._receiving, self._head_bytes = True, 0
        self._look()

    def on_headers_complete(self) -> None:
        """Handles the end of a request's head."""
        self._head_bytes = -1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Handles the end of a request's body."""
        super().on_message_complete()
        self._receiving = False
        self._look()

    def on_response_complete(self) -> None:
        """Handles the end of a response."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Handles a peer that does not read the response."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """Handles a peer that reads the response again."""
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        """Restarts or stops the timer, if the awaited event has changed."""
        if self not in self.connections:
            return  # the connection is lost
        if self._receiving or self.flow.write_paused:
            awaited: Awaited = "peer"
        else:
            answered = self.cycle is None or self.cycle.response_complete
            awaited = "request" if answered else ""
        if awaited == self._awaited:
            return
        self._stop_timer()
        self._awaited, self._since = awaited, self.loop.time()
        if awaited:
            limits = self._limits
            waiting_s = (
                limits.receive_timeout_s if awaited == "peer" else limits.keep_alive_timeout_s
            )
            self._timer = self.loop.call_later(waiting_s, self._hang_up)

    def _hang_up(self) -> None:
        if self._awaited == "peer":
            self._closed.labels("slow").inc()
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self) -> None:
        """Closes the connection that has waited longest, or this one if there are far too many.

        If none is closed here, uvicorn refuses the first request of this one.
        """
        self._closed.labels("full").inc()
        found = [
            other
            for other in self.connections
            if isinstance(other, LimitedConnection)
            and other is not self
            and other._awaited
            and not other.transport.is_closing()
        ]
        if found:
            min(found, key=lambda other: other._since).transport.abort()
        elif len(self.connections) > self._limits.max_connections + SPARE_CONNECTIONS:
            self.transport.abort()
