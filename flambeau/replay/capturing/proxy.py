"""A proxy that passes bytes on as they come, both ways, and lets a tap read along.

Rules: every connection of a client has one of its own to the server; nothing of what passes is
parsed before it is passed on, changed, or held back; a side that does not read pauses the other;
connections are read along in turns, one of them for a millisecond in each turn of the event loop.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from flambeau.replay.capturing.connection_tap import ConnectionTap
from flambeau.replay.capturing.recorder import Recorder
from flambeau.replay.errors import ServerUrlError, UnreachableError
from flambeau.replay.server_url import READ_BYTES, ServerUrl, Streams

LINGER_S = 5.0
"""Time for a client to close a connection that the server has closed."""
UNREAD_S = 600.0
"""Time for a client to read the rest of an answer behind which the server closed."""
MAX_CONNECTIONS = 4096
PIECE_BYTES = 512
"""Bytes that are read along at once: some ten small requests, 0.3 ms."""
TURN_S = 0.001
"""Time in which pieces of one connection are read along before others have their turn."""


@dataclass(slots=True, eq=False)
class _Passing:
    """A connection that is passed on."""

    tap: ConnectionTap
    task: "asyncio.Task[None]"


class CaptureProxy:
    """Listens for clients of a server.

    Args:
        server: the server.
        recorder: records what passes.

    Attributes:
        refused: number of connections that were closed at once, by reason.
    """

    def __init__(self, server: ServerUrl, recorder: Recorder) -> None:
        self._server, self._recorder = server, recorder
        self.refused: Counter[str] = Counter()
        self._open: set[_Passing] = set()
        self._listening: asyncio.Server | None = None
        self._stopping = False
        self._turn = asyncio.Lock()

    async def start(self, host: str, port: int) -> int:
        """Listens. Returns the port.

        Raises:
            ServerUrlError: the address cannot be listened on.
        """
        try:
            self._listening = await asyncio.start_server(
                self._accept, host, port, limit=READ_BYTES, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            raise ServerUrlError(f"{host}:{port} cannot be listened on: {error}") from error
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections, and closes each when its requests are answered.

        Args:
            grace_s: seconds after which the others are cut off.
        """
        assert self._listening is not None
        self._stopping = True
        self._listening.close()
        for passing in self._open:
            if passing.tap.is_idle:
                passing.task.cancel()
        tasks = [passing.task for passing in self._open]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS or self._stopping:
            self.refused["over the limit of connections"] += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        passing = _Passing(ConnectionTap(self._recorder), task)
        self._open.add(passing)
        try:
            server = await self._server.connect()
            try:
                await self._pass(passing.tap, (reader, writer), server)
                await _close(writer)
            finally:
                await _abort(server[1])
        except UnreachableError as error:
            self.refused[str(error)] += 1
        except (OSError, asyncio.CancelledError):
            pass  # a side has gone, or the proxy stops
        finally:
            self._open.discard(passing)
            passing.tap.end()
            await _abort(writer)

    async def _pass(self, tap: ConnectionTap, client: Streams, server: Streams) -> None:
        """Passes on until the server has sent its last byte, or a side breaks the connection."""

        def is_over() -> bool:
            return self._stopping and tap.is_idle

        requests = asyncio.create_task(self._pump(client[0], server[1], tap.take_request))
        answers = asyncio.create_task(self._pump(server[0], client[1], tap.take_answer, is_over))
        try:
            await asyncio.wait((requests, answers), return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                requests.result()  # raises what broke it
                if not server[1].can_write_eof():
                    return  # TLS cannot tell the server that the client sends no more
                server[1].write_eof()
                await answers
            answers.result()
            if not self._stopping and not requests.done():
                client[1].write_eof()
                await asyncio.wait((requests,), timeout=LINGER_S)
        finally:
            for task in (requests, answers):
                task.cancel()
            await asyncio.gather(requests, answers, return_exceptions=True)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        take: Callable[[bytes], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Passes on one direction, until its end."""
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            if len(data) <= PIECE_BYTES:
                take(data)
            else:
                await self._take_in_turns(data, take)
            await writer.drain()
            if is_over():
                return

    async def _take_in_turns(self, data: bytes, take: Callable[[bytes], None]) -> None:
        """Has bytes read along in pieces, for a millisecond in each turn of the event loop."""
        at = 0
        while at < len(data):
            async with self._turn:
                ends_at = time.perf_counter() + TURN_S
                while at < len(data) and time.perf_counter() < ends_at:
                    take(data[at : at + PIECE_BYTES])
                    at += PIECE_BYTES
                await asyncio.sleep(0)


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Ends a connection at once, and takes the error that broke it: nobody else asks for it."""
    writer.transport.abort()
    with contextlib.suppress(OSError, asyncio.CancelledError):  # `_close` may have given it up
        await writer.wait_closed()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Closes a connection once its peer has read all that was written."""
    writer.close()
    async with asyncio.timeout(UNREAD_S):
        await writer.wait_closed()
