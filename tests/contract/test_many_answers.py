"""Many answers to a request, on every queue: read fast, slowly, or not at all; or run again."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from services.errors import BackendError, DeadlineExceededError, UnreadAnswersError
from services.inference.scheduling import instance
from services.queueing.memory_queue import Entry
from services.queueing.part_window import MAX_UNREAD, PartWindow
from services.queueing.records import InferReply
from tests.fixtures.fake_backends import CountingBackend
from tests.fixtures.part_reader import PartReader
from tests.fixtures.queue_ends import (
    Ends,
    Shelf,
    memory_ends,
    redis_ends,
    redis_gateway,
    redis_worker,
    reply,
    request,
    shared_memory_ends,
)
from tests.fixtures.redis_servers import FLAVOURS, running_redis, until
from tests.fixtures.running_worker import running

LARGE = 100_000
"""Elements of a part that does not travel in Redis' list."""


@pytest.fixture(params=("memory", "shared memory", *FLAVOURS))
async def ends(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ends]:
    if request.param == "memory":
        async with memory_ends() as ends:
            yield ends
    elif request.param == "shared memory":
        async with shared_memory_ends() as ends:
            yield ends
    else:
        async with running_redis(request.param, tmp_path) as redis, redis_ends(redis.url) as ends:
            yield ends


def reader_of(ends: Ends, *, reads: bool = True, timeout_s: float = 30.0) -> PartReader:
    """Sends a request, and returns its caller."""
    return PartReader(partial(ends.gateway.submit, request(timeout_s=timeout_s)), reads=reads)


async def give(entry: Entry, count: int, elements: int = 1) -> bool:
    """Gives parts, as an instance does. Returns False if nobody reads any more."""
    window = entry.window = PartWindow()
    for number in range(count):
        if not await asyncio.to_thread(window.give):
            return False
        size = elements if number % 2 == 0 else 1
        part = reply(number, size)
        entry.part(msgspec.structs.replace(part, number=number, is_last=False, window=window))
    return True


def end(entry: Entry, count: int) -> None:
    """Ends an answer of so many parts."""
    entry.finish(msgspec.structs.replace(reply(), outputs={}, number=count))


@pytest.mark.parametrize("count", [0, 1, 1000])
async def test_each_part_arrives_once_in_order_and_then_the_end(ends: Ends, count: int) -> None:
    reader = reader_of(ends)
    await ends.shelf.holds(1)
    entry = ends.shelf.take()
    assert await give(entry, count)
    end(entry, count)
    await reader.wait()
    assert reader.numbers == [*range(count + 1)]
    assert reader.values == [*range(count)]
    assert ends.gateway.unanswered == 0


async def test_large_parts_keep_their_places_among_small_ones(ends: Ends) -> None:
    reader = reader_of(ends)
    await ends.shelf.holds(1)
    entry = ends.shelf.take()
    assert await give(entry, 20, LARGE)
    end(entry, 20)
    await reader.wait()
    assert reader.values == [*range(20)]
    sizes = [one.outputs["y"].size for one in reader.heard[:-1] if isinstance(one, InferReply)]
    assert sizes == [LARGE, 1] * 10


async def test_slow_reader_stops_the_backend_and_nobody_else(ends: Ends) -> None:
    slow = reader_of(ends, reads=False)
    await ends.shelf.holds(1)
    entry = ends.shelf.take()
    giving = asyncio.create_task(give(entry, 100))
    await until(lambda: len(slow.heard) == MAX_UNREAD)
    other = ends.send()
    await ends.shelf.holds(1)
    ends.shelf.take().finish(reply(7))
    assert await other.value() == 7
    assert len(slow.heard) == MAX_UNREAD
    assert entry.window is not None
    assert entry.window.given == MAX_UNREAD
    while not giving.done():
        slow.read()
        await asyncio.sleep(0)
    end(entry, 100)
    await slow.wait()
    assert slow.values == [*range(100)]


async def test_caller_that_leaves_ends_the_run(ends: Ends) -> None:
    reader = reader_of(ends, reads=False)
    await ends.shelf.holds(1)
    giving = asyncio.create_task(give(ends.shelf.take(), 10**9))
    await until(lambda: len(reader.heard) == MAX_UNREAD)
    reader.entry.cancel()
    assert not await giving
    assert len(reader.heard) == MAX_UNREAD


async def test_deadline_ends_the_run_of_a_reader_that_stopped(ends: Ends) -> None:
    reader = reader_of(ends, reads=False, timeout_s=0.5)
    await ends.shelf.holds(1)
    assert not await give(ends.shelf.take(), 10**9)
    await reader.wait()
    assert isinstance(reader.heard[-1], DeadlineExceededError)


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_reader_that_stops_frees_the_instance_of_another_process(
    flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "READ_WITHIN_S", 1.0)
    async with (
        running_redis(flavour, tmp_path) as redis,
        running(CountingBackend(100)) as made,
        redis_worker(redis.url, "w", made.worker),
        redis_gateway(redis.url, "g") as gateway,
    ):
        stopped = PartReader(partial(gateway.submit, request()), reads=False)
        await stopped.wait()
        assert isinstance(stopped.heard[-1], UnreadAnswersError)
        reader = PartReader(partial(gateway.submit, request()))
        await reader.wait()
        assert reader.values == [*range(100)]


async def test_error_ends_the_parts_before_it(ends: Ends) -> None:
    reader = reader_of(ends)
    await ends.shelf.holds(1)
    entry = ends.shelf.take()
    assert await give(entry, 3)
    entry.finish(BackendError("broken"))
    await reader.wait()
    assert reader.values == [0, 1, 2]
    assert isinstance(reader.heard[-1], BackendError)


@pytest.mark.parametrize("count", [1, 5000], ids=["small", "large"])
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_part_that_cannot_be_written_ends_the_answer_and_its_run(
    flavour: str, count: int, tmp_path: Path
) -> None:
    broken = {"y": np.array(["\ud800"] * count, object)}
    async with running_redis(flavour, tmp_path) as redis, redis_ends(redis.url) as ends:
        reader = reader_of(ends)
        await ends.shelf.holds(1)
        entry = ends.shelf.take()
        assert await give(entry, 2)
        entry.part(msgspec.structs.replace(reply(), outputs=broken, number=2, is_last=False))
        await reader.wait()
        assert entry.dead
    assert reader.values == [0, 1]
    assert "version 1 cannot be written: a BYTES element" in str(reader.heard[-1])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("reads", [True, False])
async def test_parts_of_a_request_that_runs_again_are_seen_once(
    flavour: str, reads: bool, tmp_path: Path
) -> None:
    """Its first worker dies in the middle, perhaps while it waits for the reader."""
    first, second = Shelf(), Shelf()
    async with running_redis(flavour, tmp_path) as redis, redis_gateway(redis.url, "g") as gateway:
        async with redis_worker(redis.url, "dies", first) as worker:
            reader = reader_of(Ends(gateway, worker, first), reads=reads)
            await first.holds(1)
            dead = first.take()
            before = 3 * MAX_UNREAD if reads else MAX_UNREAD
            giving = asyncio.create_task(give(dead, before if reads else 10**9))
            await until(lambda: len(reader.heard) == before)
        assert dead.window is not None
        dead.window.close()
        assert await giving is reads
        async with redis_worker(redis.url, "takes over", second):
            (entry,) = await second.holds(1)
            giving = asyncio.create_task(give(second.take(), before + 20))
            while not giving.done():
                reader.read()
                await asyncio.sleep(0)
            assert giving.result()
            end(entry, before + 20)
            await reader.wait()
        assert reader.values == [*range(before + 20)]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_parts_survive_the_loss_of_redis_memory(flavour: str, tmp_path: Path) -> None:
    """The request is sent again, and runs again beside its first run."""
    async with running_redis(flavour, tmp_path) as redis, redis_ends(redis.url) as ends:
        reader = reader_of(ends, reads=False)
        await ends.shelf.holds(1)
        lost = ends.shelf.take()
        first = asyncio.create_task(give(lost, 30))
        await until(lambda: len(reader.heard) == MAX_UNREAD)
        await redis.client.flushall()
        await ends.shelf.holds(1)
        entry = ends.shelf.take()
        second = asyncio.create_task(give(entry, 30))
        while not second.done():
            reader.read()
            await asyncio.sleep(0)
        end(entry, 30)
        await reader.wait()
        assert lost.window is not None
        lost.window.close()
        await first
        assert reader.values == [*range(30)]
