"""Requests over persistent HTTP/1.1 connections.

In: canned requests. Out: for each one sent, one callback with its outcome and the body. The work
for each request is as small as Python allows, so that the client is not what is measured.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

from bench.loads.shooter import Answered, Outcome
from bench.measured.golden_model import http_request
from bench.peers.peer import Ask

MAX_CONNECTIONS = 4096
_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_BY_STATUS = {
    b"200": Outcome.ANSWERED,
    b"400": Outcome.WRONG,
    b"404": Outcome.WRONG,
    b"503": Outcome.REFUSED,
    b"504": Outcome.EXPIRED,
}


class _Connection(asyncio.Protocol):
    """One connection. Parses just enough HTTP for the responses of our own server."""

    def __init__(self, owner: "RestShooter") -> None:
        self._owner = owner
        self._buffer = b""
        self._answered: Answered | None = None
        self._request = b""
        self._fresh = True
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._owner.connections.add(self)

    def send(self, request: bytes, answered: Answered) -> None:
        self._request, self._answered = request, answered
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(_END)
        if end >= 0:
            head = data[:end].lower()
            start = head.find(_LENGTH) + len(_LENGTH)
            finish = head.find(b"\r", start)
            length = int(head[start : finish if finish >= 0 else end])
            if len(data) >= end + len(_END) + length:
                self._buffer = b""
                outcome = _BY_STATUS.get(data[9:12], Outcome.FAILED)
                self._finish(outcome, data[end + len(_END) :], b"connection: close" not in head)
                return
        self._buffer = data

    def _finish(self, outcome: Outcome, body: bytes, stays_open: bool) -> None:
        answered, self._answered, self._fresh = self._answered, None, False
        if stays_open:
            self._owner.on_free(self)
        if answered is not None:
            answered(outcome, body)

    def connection_lost(self, error: Exception | None) -> None:
        owner, answered = self._owner, self._answered
        owner.on_lost(self)
        if answered is None:
            return
        if not self._fresh and not self._buffer:
            # The server just closed an idle connection: RFC 9112, 9.3.1 has clients retry.
            owner.on_new_connection(self._request, answered)
        else:
            answered(Outcome.FAILED, f"connection lost: {error}".encode())


class RestShooter:
    """Keeps connections with one request at a time on each; opens more when all are busy.

    At the connection limit, requests wait for the first free connection, as in any client's pool;
    the caller sees them as sent.
    """

    def __init__(self, address: str, asks: Sequence[Ask]) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._requests = [http_request(ask) for ask in asks]
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._waiting: deque[tuple[bytes, Answered]] = deque()
        self.idle: list[_Connection] = []
        self.connections: set[_Connection] = set()

    def send(self, number: int, answered: Answered) -> None:
        """Sends one request; see `Shooter`."""
        request = self._requests[number % len(self._requests)]
        if self.idle:
            self.idle.pop().send(request, answered)
        else:
            self.on_new_connection(request, answered)

    def on_new_connection(self, request: bytes, answered: Answered) -> None:
        """Sends a request on a new connection, which is then kept, or queues it at the limit."""
        if self._closed:
            answered(Outcome.FAILED, b"not sent: the client hangs up")
            return
        if self._is_full:
            self._waiting.append((request, answered))
            return
        task = asyncio.get_running_loop().create_task(self._connect(request, answered))
        self._tasks.add(task)
        task.add_done_callback(self._on_connected)

    def on_free(self, connection: _Connection) -> None:
        """Reuses a connection that received its response."""
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self.idle.append(connection)

    def on_lost(self, connection: _Connection) -> None:
        """Removes a connection that has ended."""
        self.connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._open_for_waiting()

    @property
    def _is_full(self) -> bool:
        return len(self.connections) + len(self._tasks) >= MAX_CONNECTIONS

    def _on_connected(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._open_for_waiting()

    def _open_for_waiting(self) -> None:
        if self._waiting and not self._is_full:
            self.on_new_connection(*self._waiting.popleft())

    async def _connect(self, request: bytes, answered: Answered) -> None:
        try:
            connection = await self._open()
        except OSError as error:
            answered(Outcome.FAILED, f"cannot connect: {error}".encode())
        else:
            connection.send(request, answered)

    async def send_and_leave(self, number: int, patience_s: float) -> None:
        """Sends one request on a new connection and disconnects; see `Shooter`."""
        connection = await self._open()
        connection.transport.write(self._requests[number % len(self._requests)])
        await asyncio.sleep(patience_s)
        connection.transport.abort()

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self), self._host, self._port
        )
        return connection

    async def close(self) -> None:
        """Closes all connections."""
        self._closed = True
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in this turn the sockets are closed
