"""One connection to Redis that many commands share: each is written at once, behind those before.

In: commands. Out: their replies, which Redis sends in the order of the commands. redis-py opens the
connection (TLS, login, database, the master behind Sentinel) and gives it away: its own way of a
command through a pool, a lock and a stream takes five times as long.

Rules:
- no command is sent twice;
- a connection that is lost, late or at a former master fails all commands that wait on it, and the
  next command opens another;
- a command has its time from when it is sent, and from the reply to the one before it: commands may
  wait behind one that blocks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

_INCOMPLETE = object()
"""Returned by the parser while a reply is incomplete."""
ParseError = Callable[[str], Exception]


class _GivenAway(AbstractConnection):
    """A connection of redis-py whose bytes another protocol reads and writes."""

    def give_to(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, ParseError]:
        """Returns the transport, and a function from the words of an error to its exception."""
        assert self._writer is not None
        transport = cast(asyncio.Transport, self._writer.transport)
        transport.set_protocol(protocol)
        return transport, self._parser.parse_error

    def close(self) -> None:
        """Closes it; a connection that is closed stays so."""
        self._close()  # type: ignore[no-untyped-call]


def given_away(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Returns a class of connections that a `PipelinedConnection` may use."""
    return type(f"GivenAway{kind.__name__}", (_GivenAway, kind), {})


class _Trip:
    """Commands that were written together, and their replies so far."""

    __slots__ = ("count", "done", "replies", "since", "timeout_s")

    def __init__(
        self, done: "asyncio.Future[list[Any]]", count: int, since: float, timeout_s: float
    ) -> None:
        self.done, self.count = done, count
        self.since, self.timeout_s = since, timeout_s
        self.replies: list[Any] = []


class PipelinedConnection:
    """See the module.

    Args:
        pool: makes connections of a class of `given_away`; keeps none.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._opening = asyncio.Lock()
        self._line: _Line | None = None

    async def execute(self, commands: Iterable[Sequence[Any]], timeout_s: float) -> list[Any]:
        """Sends commands, and returns their replies; errors of Redis are among these.

        Args:
            commands: each as its words.
            timeout_s: for all of them together, and for the connection before them.

        Raises:
            RedisError: Redis is out of reach, or is not the master any more.
        """
        packed = [hiredis.pack_command(tuple(command)) for command in commands]
        line = self._line
        if line is None or line.is_over:
            try:
                async with asyncio.timeout(timeout_s):
                    line = await self._opened()
            except TimeoutError as error:
                raise _late(timeout_s) from error
        return await line.send(packed, timeout_s)

    def close(self) -> None:
        """Closes the connection; the next command opens another."""
        if self._line is not None:
            self._line.fail(RedisConnectionError("the connection has been closed"))

    async def _opened(self) -> "_Line":
        async with self._opening:
            if self._line is None or self._line.is_over:
                connection: _GivenAway = self._pool.make_connection()  # type: ignore[no-untyped-call]
                try:
                    await connection.connect()  # type: ignore[no-untyped-call]
                except BaseException:
                    connection.close()
                    raise
                self._line = _Line(connection)
            return self._line


class _Line(asyncio.Protocol):
    """An open connection, until it is over."""

    def __init__(self, connection: _GivenAway) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._transport, parse_error = connection.give_to(self)
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=parse_error, notEnoughData=_INCOMPLETE
        )
        self._waiting: deque[_Trip] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self.is_over = False

    def send(self, packed: Sequence[bytes], timeout_s: float) -> "asyncio.Future[list[Any]]":
        """Writes commands; their replies are the result."""
        loop, waiting = self._loop, self._waiting
        trip = _Trip(loop.create_future(), len(packed), loop.time(), timeout_s)
        waiting.append(trip)
        if self._timer is None:
            self._timer = loop.call_later(timeout_s, self._look_at_time)
        self._transport.write(packed[0] if len(packed) == 1 else b"".join(packed))
        return trip.done

    def data_received(self, data: bytes) -> None:
        """Reads replies."""
        if self.is_over:
            return
        reader, waiting = self._reader, self._waiting
        self._heard_at = self._loop.time()
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _INCOMPLETE:
                trip = waiting[0]
                if isinstance(reply, ReadOnlyError):  # Sentinel is asked again
                    self.fail(RedisConnectionError(f"the server is no master any more: {reply}"))
                    return
                trip.replies.append(reply)
                if len(trip.replies) == trip.count:
                    waiting.popleft()
                    if not trip.done.done():
                        trip.done.set_result(trip.replies)
        except (InvalidResponse, IndexError) as error:
            self.fail(RedisConnectionError(f"the server does not speak Redis' protocol: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails what waits."""
        self.fail(RedisConnectionError(str(exc or "Redis closed the connection")))

    def fail(self, error: Exception) -> None:
        """Closes the connection; what waits for replies fails."""
        if self.is_over:
            return
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._connection.close()
        for trip in self._waiting:
            if not trip.done.done():
                trip.done.set_exception(error)
        self._waiting.clear()

    def _look_at_time(self) -> None:
        self._timer = None
        if self._waiting:
            oldest = self._waiting[0]
            left_s = max(oldest.since, self._heard_at) + oldest.timeout_s - self._loop.time()
            if left_s <= 0:
                self.fail(_late(oldest.timeout_s))
            else:
                self._timer = self._loop.call_later(left_s, self._look_at_time)


def _late(timeout_s: float) -> RedisTimeoutError:
    return RedisTimeoutError(f"no answer within {timeout_s:g} s")
