"""Connections that commands share: order, faults and time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.queueing.redis_streams import clients
from services.queueing.redis_streams.clients import Commands, RedisClients

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(folder: Path, answer: Answer) -> AsyncIterator[Commands]:
    """Opens a client of a server that answers as it is told."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # as the test ends
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(connected, folder / "s")
    commands = RedisClients(f"unix://{folder / 's'}").open()
    try:
        yield commands
    finally:
        await commands.close()
        server.close()


async def commands_in(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int
) -> None:
    """Reads that many commands; those by which redis-py introduces itself do not count."""
    while count:
        words = int((await reader.readline())[1:])
        command = [await reader.readline() for _ in range(2 * words)]
        if command[1] == b"CLIENT\r\n":
            writer.write(b"+OK\r\n")
        else:
            count -= 1


async def test_each_command_gets_its_own_reply(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await commands_in(reader, writer, 4)  # all are written before the first reply
        for byte in b":1\r\n:2\r\n:3\r\n-ERR four\r\n":
            writer.write(bytes([byte]))  # a reply may come in any pieces
            await writer.drain()
        await reader.read()

    async with answering(tmp_path, answer) as redis:
        trip = redis.trip()
        trip.add("TWO")
        trip.add("THREE")
        found = await asyncio.gather(
            redis.send("ONE"), trip.execute(), redis.send("FOUR"), return_exceptions=True
        )
    assert found[:2] == [1, [2, 3]]
    assert isinstance(found[2], ResponseError)
    assert str(found[2]) == "four"


async def test_reply_to_a_cancelled_command_goes_to_no_other(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await commands_in(reader, writer, 1)
        asked.set()
        await commands_in(reader, writer, 1)
        writer.write(b":1\r\n:2\r\n")
        await reader.read()

    async with answering(tmp_path, answer) as redis:
        first = asyncio.create_task(redis.send("ONE"))
        await asked.wait()
        first.cancel()
        assert await redis.send("TWO") == 2
        assert first.cancelled()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", RedisConnectionError),
        (b"-READONLY You can't write against a read only replica.\r\n", RedisConnectionError),
        (b"?\r\n", RedisConnectionError),
    ],
)
async def test_fault_fails_all_that_waits_and_the_next_command_opens_another(
    tmp_path: Path, reply: bytes, error: type[RedisError]
) -> None:
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await commands_in(reader, writer, 2)
            writer.write(reply)
            return
        await commands_in(reader, writer, 1)
        writer.write(b":3\r\n")
        await reader.read()

    async with answering(tmp_path, answer) as redis:
        found = await asyncio.gather(redis.send("ONE"), redis.send("TWO"), return_exceptions=True)
        assert [type(one) for one in found] == [error, error]
        assert await redis.send("THREE") == 3
    assert connections == 2


async def test_late_reply_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "COMMAND_TIMEOUT_S", 0.3)
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await commands_in(reader, writer, 1)
        assert not await reader.read()  # the client has closed
        ended.set()

    async with answering(tmp_path, answer) as redis:
        with pytest.raises(RedisTimeoutError, match=r"no answer within 0\.3 s"):
            await redis.send("ONE")
        async with asyncio.timeout(5):
            await ended.wait()


async def test_time_of_a_command_starts_when_the_one_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "COMMAND_TIMEOUT_S", 0.6)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await commands_in(reader, writer, 3)
        for number in b"123":
            await asyncio.sleep(0.35)  # a busy server; nothing tells of it
            writer.write(b":%c\r\n" % number)
        await reader.read()

    async with answering(tmp_path, answer) as redis:
        assert await asyncio.gather(*map(redis.send, ("ONE", "TWO", "THREE"))) == [1, 2, 3]
