"""What no gateway or worker wrote must not end the process that reads it."""

import asyncio
from typing import Any

import pytest

from services.queueing.memory_queue import MemoryQueue
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import LaneKeys, alive_key, replies_key
from services.queueing.redis_streams.sending_lane import SendingLane
from services.queueing.redis_streams.uplink import Uplink
from tests.fixtures.queue_ends import (
    LANE,
    Caller,
    Ends,
    Shelf,
    redis_gateway,
    redis_worker,
    reply,
    request,
)
from tests.fixtures.redis_servers import RedisProcess, until, until_seen

KEYS = LaneKeys(LANE)


async def answers(ends: Ends) -> None:
    """A request passes, so both ends are alive."""
    caller = ends.send()
    await ends.shelf.holds(1)
    ends.shelf.take().finish(reply(7))
    assert await caller.value() == 7


@pytest.mark.parametrize(
    "notice", [b"", b"garbage", b"g x", b"\xff\xfe", b"g " + b"9" * 5000, b"g 1 x", b"g 1 2 3"]
)
async def test_notice_of_another_form_changes_nothing(redis: RedisProcess, notice: bytes) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        ends = Ends(g, worker, shelf)
        caller = ends.send()
        await shelf.holds(1)
        await redis.client.publish(KEYS.notices, notice)
        shelf.take().finish(reply(3))
        assert await caller.value() == 3
        await answers(ends)


@pytest.mark.parametrize("stream", [KEYS.streams[4], KEYS.steps("w")])
@pytest.mark.parametrize(
    "fields",
    [
        {b"a": b"b"},
        {b"deadline": b"x", b"address": b"g 1", b"payload": b""},
        {b"deadline": b"1", b"address": b"g", b"payload": b""},
        {b"deadline": b"1", b"address": b"g " + b"9" * 5000, b"payload": b""},
        {b"deadline": b"9" * 16, b"address": b"g 1"},
    ],
)
async def test_entry_of_another_form_is_removed(
    redis: RedisProcess, stream: str, fields: Any
) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        await redis.client.xadd(stream, fields)

        async def is_removed() -> bool:
            return await redis.client.xlen(stream) == 0

        await until_seen(is_removed)
        await answers(Ends(g, worker, shelf))


async def test_entry_of_another_form_does_not_end_the_workers_that_take_it_over(
    redis: RedisProcess, impatient: None
) -> None:
    stream = KEYS.streams[4]
    shelf = Shelf()
    async with redis_worker(redis.url, "first", shelf), redis_gateway(redis.url, "g"):
        await asyncio.sleep(0)
    await redis.client.xadd(stream, {b"a": b"b"})
    await redis.client.xreadgroup("workers", "dead", {stream: ">"})
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "h") as g:

        async def is_removed() -> bool:
            return await redis.client.xlen(stream) == 0

        await until_seen(is_removed)
        await answers(Ends(g, worker, shelf))


@pytest.mark.parametrize("outcome", [b"", b"abc", b"x" * 7, b"\x00" * 9])
async def test_outcome_of_another_form_is_dropped(redis: RedisProcess, outcome: bytes) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        await redis.client.rpush(replies_key("g"), outcome)
        await answers(Ends(g, worker, shelf))


async def test_list_of_outcomes_of_another_type_is_deleted(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    key = replies_key("g")
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        ends = Ends(g, worker, shelf)
        for _ in range(3):
            await redis.client.delete(key)
            await redis.client.set(key, "foreign")
            await answers(ends)
    told = [line for line in caplog.records if "does not return the outcomes" in line.message]
    assert [getattr(line, "key", "") for line in told] == [key], "once in a minute"


async def test_an_outcome_waits_for_a_list_of_another_type_to_go(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Its gateway lives, and reads nothing here."""
    key, shelf = replies_key("h"), Shelf()
    uplink = Uplink(
        redis=RedisClients(redis.url).open(), gateway="h", max_depth=1, record_trip=lambda _: None
    )
    await redis.client.set(alive_key("h"), 1, ex=60)
    async with redis_worker(redis.url, "w", shelf):
        queue = MemoryQueue(1)
        queue.open(LANE, SendingLane(uplink, LANE))
        Caller(queue, request())
        await shelf.holds(1)
        await redis.client.set(key, "foreign")
        shelf.take().finish(reply(1))
        await until(lambda: "the queue is unreachable" in caplog.messages)
        (told,) = [vars(line) for line in caplog.records if "unreachable" in line.message]
        assert "WRONGTYPE" in told["reason"]
        await redis.client.delete(key)

        async def is_delivered() -> bool:
            return await redis.client.llen(key) == 1

        await until_seen(is_delivered)
    await uplink.redis.close()
