"""The HTTP server of one process: listens, watches over its connections, stops in peace."""

import asyncio
import contextlib
import socket
import ssl

from services.gateway.http_exchange import Router
from services.gateway.http_port import HttpLimits, HttpPort
from services.gateway.http_protocol import HttpConnection
from services.telemetry.metrics import Metrics

_MAX_SWEEP_S = 1.0
BACKLOG = 1024


class HttpServer:
    """Answers what a router knows.

    Args:
        router: makes of each head what opens its exchange.
        limits: what a connection and a request may cost.
        metrics: counts what the limits refuse.
        tls: with it, the port speaks HTTPS.
    """

    def __init__(
        self,
        router: Router,
        limits: HttpLimits,
        metrics: Metrics,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._port = HttpPort(router, limits, metrics)
        self._tls = tls
        self._listening: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Coarse on purpose: one timer looks through all connections.
        shortest_s = min(limits.keep_alive_timeout_s, limits.receive_timeout_s)
        self._sweep_s = min(_MAX_SWEEP_S, shortest_s / 4)

    async def start(self, listening: socket.socket) -> None:
        """Begins to answer on a bound socket, which from now on belongs to the server."""
        self._sweep()
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self._port), sock=listening, backlog=BACKLOG, ssl=self._tls
        )

    def part(self) -> None:
        """Closes each connection with its next answer, which says so; takes new ones as before."""
        self._port.stopping = True

    async def stop(self, grace_s: float) -> None:
        """Takes no new connection, closes idle ones, and answers what is in flight.

        Args:
            grace_s: after it, whatever is still open is dropped.
        """
        port = self._port
        if self._listening is not None:
            self._listening.close()
        port.stopping = True
        for connection in tuple(port.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await port.empty.wait()
        for connection in tuple(port.connections):
            connection.abort()
        await port.empty.wait()
        if self._timer is not None:
            self._timer.cancel()
        port.threads.close()

    def _sweep(self) -> None:
        self._port.tick()
        for connection in tuple(self._port.connections):
            connection.sweep()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._sweep_s, self._sweep)
