"""Helpers for tests of the clients: one request with its outcome, and a server for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from bench.loads.shooter import Outcome, Shooter

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def shoot(shooter: Shooter, number: int = 0) -> tuple[Outcome, bytes]:
    """Sends one request and waits for its end."""
    ended: asyncio.Future[tuple[Outcome, bytes]] = asyncio.get_running_loop().create_future()
    shooter.send(number, lambda outcome, body: ended.set_result((outcome, body)))
    async with asyncio.timeout(10):
        return await ended


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes a connection at once."""


@contextlib.asynccontextmanager
async def listening(handle: Handler) -> AsyncIterator[str]:
    """Runs a server with this connection handler; yields its address."""
    handlers: list[asyncio.Task[None] | None] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await handle(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*(handler for handler in handlers if handler))
