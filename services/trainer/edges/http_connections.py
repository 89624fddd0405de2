"""The connections of the trainer's REST port: uvicorn's, with limits to what silent peers may hold.

uvicorn counts every connection against its limit, and waits for a first request as long as its peer
likes. Rules kept here:
- a peer may take so long to send a request, to send all of it, and to read nothing of the answer;
- a connection over the limit takes the place of the one whose peer has kept us waiting longest;
  one whose request is being answered keeps its place, and where all are, the new one is refused;
- a head may have so many bytes.
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
"""Connections beyond the limit that are still told so; the next ones are dropped."""

Awaited = Literal["", "request", "peer"]
"""What a connection waits for: nothing, as it is being answered; the first byte of a request; or
its peer, to send the rest or to read the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of the port; the settings of the same names say more."""

    max_connections: int
    keep_alive_timeout_s: float
    receive_timeout_s: float


class LimitedConnection(HttpToolsProtocol):
    """One connection.

    Args:
        limits: of the port.
        closed: counts connections that were closed, by `reason`: slow or full.
        given: by uvicorn.
    """

    def __init__(self, limits: HttpLimits, closed: Counter, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._closed = closed
        self._receiving = False
        self._head_bytes = -1
        """Of the head that is being received; -1 while none is."""
        self._awaited: Awaited = ""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._make_room()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        super().data_received(data)
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._head_bytes = -1
                self.send_400_response(f"The URL and headers are over {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """A request has begun."""
        super().on_message_begin()
        self._receiving, self._head_bytes = True, 0
        self._look()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._head_bytes = -1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it is there."""
        super().on_message_complete()
        self._receiving = False
        self._look()

    def on_response_complete(self) -> None:
        """A request was answered."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The peer does not read."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """The peer has read."""
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        """Starts or stops the clock, if what is waited for has changed."""
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
        """Closes the connection that has waited longest; if all are being answered, perhaps ours.

        What is not closed here is refused by uvicorn, once it asks for something.
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
