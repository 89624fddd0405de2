"""Large tensors between processes of one host: through files, or through Redis if need be."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from services.errors import DeadLetterError, QueueUnavailableError
from services.queueing.records import DEFAULT_PRIORITY, JOB_PRIORITY, InferReply
from services.queueing.redis_streams import sender
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.dead_letters import DeadLetters
from services.queueing.redis_streams.jobs import JobLimits, Jobs
from services.queueing.redis_streams.keys import LaneKeys
from services.queueing.redis_streams.outcome_delivery import LARGE_REPLIES_BYTES
from services.queueing.redis_streams.wire import INLINE_BYTES
from tests.contract.test_sequences import step_request
from tests.fixtures.queue_ends import (
    LANE,
    Caller,
    Ends,
    Shelf,
    echo_of,
    redis_ends,
    redis_gateway,
    redis_worker,
    reply,
    reply_of,
    request,
)
from tests.fixtures.redis_servers import RedisProcess, until, until_seen

LARGE = INLINE_BYTES // 4 + 1


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return tmp_path / "host"


async def most_keys(redis: RedisProcess, pattern: str) -> int:
    return len(await redis.client.keys(pattern))


@pytest.mark.parametrize("elements", [LARGE, 4 * 2**20])
async def test_nothing_large_passes_through_redis(
    redis: RedisProcess, host: Path, elements: int
) -> None:
    async with redis_ends(redis.url, host) as ends:
        before = int((await redis.client.info("stats"))["total_net_input_bytes"])
        caller = ends.send(elements=elements)
        (entry,) = await ends.shelf.holds(1)
        assert len(os.listdir(host / "g")) == 1
        x = entry.request.inputs["x"]
        assert x.shape == (1, elements)
        assert not x.flags.writeable
        values = np.arange(elements, dtype=np.float32).reshape(1, elements)
        ends.shelf.take().finish(reply_of({"y": values}))
        outcome = await caller.outcome()
        assert isinstance(outcome, InferReply)
        assert np.array_equal(outcome.outputs["y"], values)
        assert os.listdir(host / "g") == []
        assert float(x.sum()) == 0  # a batch may still run
        received = int((await redis.client.info("stats"))["total_net_input_bytes"]) - before
        assert received < 2**16
    assert os.listdir(host) == []


async def test_a_worker_of_another_host_gets_everything_through_redis(
    redis: RedisProcess, host: Path, tmp_path: Path
) -> None:
    shelf = Shelf()
    async with (
        redis_worker(redis.url, "w", shelf, tmp_path / "other") as worker,
        redis_gateway(redis.url, "g", host=host, workers=["w"]) as g,
    ):
        caller = Ends(g, worker, shelf).send(elements=LARGE)
        (entry,) = await shelf.holds(1)
        assert await most_keys(redis, "*payload*") == 1
        assert os.listdir(host / "g") == []
        stream = LaneKeys(LANE).streams[DEFAULT_PRIORITY - 1]
        assert (await redis.client.xinfo_stream(stream))["entries-added"] == 1
        entry.finish(reply(1, elements=LARGE))
        assert await caller.value() == 1


async def test_a_worker_that_cannot_read_a_file_gets_its_request_again(
    redis: RedisProcess, host: Path, tmp_path: Path
) -> None:
    """A worker of another host has joined, and the gateway does not know."""
    shelf = Shelf()
    async with (
        redis_worker(redis.url, "w", Shelf(capacity=0), host),
        redis_worker(redis.url, "v", shelf, tmp_path / "other") as worker,
        redis_gateway(redis.url, "g", host=host, workers=["w"]) as g,
    ):
        callers = [Ends(g, worker, shelf).send(n, elements=LARGE) for n in range(3)]
        for entry in list(await shelf.holds(3)):
            assert entry.request.inputs["x"].shape == (1, LARGE)
            entry.finish(reply(int(entry.request.request_id)))
        assert [await caller.value() for caller in callers] == [0, 1, 2]
        assert os.listdir(host / "g") == []
        assert [len(caller.heard) for caller in callers] == [1, 1, 1]


async def test_what_a_dead_worker_held_is_read_by_another(
    redis: RedisProcess, host: Path, impatient: None
) -> None:
    first, second = Shelf(), Shelf()
    async with redis_gateway(redis.url, "g", host=host, workers=["lives"]) as gateway:
        async with (
            redis_worker(redis.url, "lives", Shelf(capacity=0), host),
            redis_worker(redis.url, "dies", first, host) as worker,
        ):
            callers = [Ends(gateway, worker, first).send(n, elements=LARGE) for n in range(2)]
            await first.holds(2)
            assert len(os.listdir(host / "g")) == 2
        async with redis_worker(redis.url, "lives", second, host):
            for _ in callers:
                (entry,) = await second.holds(1)
                assert entry.request.alone
                second.take().finish(reply(int(entry.request.request_id), elements=LARGE))
            assert [await caller.value() for caller in callers] == [0, 1]
        assert await most_keys(redis, "*payload*") == 0
        assert os.listdir(host / "g") == []


async def test_a_dead_letter_keeps_its_tensors(
    redis: RedisProcess, host: Path, impatient: None
) -> None:
    shelves = [Shelf(), Shelf(), Shelf()]
    async with redis_gateway(redis.url, "g", host=host, workers=["first"]) as gateway:
        async with redis_worker(redis.url, "first", shelves[0], host) as worker:
            caller = Ends(gateway, worker, shelves[0]).send("poison", elements=LARGE)
            await shelves[0].holds(1)
        async with redis_worker(redis.url, "second", shelves[1], host):
            await shelves[1].holds(1)
        async with redis_worker(redis.url, "third", shelves[2], host):
            assert isinstance(await caller.outcome(), DeadLetterError)
    letters = DeadLetters(RedisClients(redis.url))
    (letter,) = await letters.all()
    assert (await letters.request(letter)).inputs["x"].shape == (1, LARGE)
    (key,) = await redis.client.keys("*payload*")
    assert await redis.client.ttl(key) > 86_400
    await letters.close()


async def test_full_memory_leads_through_redis(
    redis: RedisProcess, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with redis_ends(redis.url, host) as ends:
        resource.setrlimit(resource.RLIMIT_FSIZE, (INLINE_BYTES, limits[1]))
        try:
            caller = ends.send(elements=LARGE)
            (entry,) = await ends.shelf.holds(1)
            assert await most_keys(redis, "*payload*") == 1
            entry.finish(reply(5, elements=LARGE))
            assert await caller.value() == 5
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert os.listdir(host / "g") == []
    assert "shared memory is not usable" in caplog.text


async def test_steps_and_jobs_pass_through_redis(redis: RedisProcess, host: Path) -> None:
    """A step is never sent again, and a job outlives its gateway."""
    jobs = Jobs(RedisClients(redis.url), JobLimits(max_waiting=4, result_ttl_s=100))
    async with redis_ends(redis.url, host) as ends:
        job_id, _ = await jobs.submit(request(priority=JOB_PRIORITY, elements=LARGE), 60)
        (entry,) = await ends.shelf.holds(1)
        ends.shelf.take().finish(echo_of(entry))
        await until_seen(lambda: _is_over(jobs, job_id))
        caller = Caller(ends.gateway, step_request("s", "start", elements=LARGE))
        (entry,) = await ends.shelf.holds(1)
        assert os.listdir(host / "g") == []
        entry.finish(reply(3, elements=LARGE))
        assert await caller.value() == 3


async def _is_over(jobs: Jobs, job_id: str) -> bool:
    return (await jobs.find(job_id, None)).state == "done"


async def test_a_cancelled_request_leaves_no_file(redis: RedisProcess, host: Path) -> None:
    async with redis_ends(redis.url, host) as ends:
        taken, on_its_way = ends.send(elements=LARGE), ends.send(elements=LARGE)
        await ends.shelf.holds(2)
        taken.entry.cancel()
        on_its_way.entry.expire()
        at_once = ends.send(elements=LARGE)
        at_once.entry.cancel()
        await until(lambda: os.listdir(host / "g") == [])
        caller = ends.send()
        await until(lambda: len(ends.shelf.entries) == 1)
        ends.shelf.take().finish(reply(2))
        assert await caller.value() == 2


async def test_answers_that_nobody_reads_are_limited_and_swept(
    redis: RedisProcess, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LOOK_FOR_LOST_EVERY_S", 0.2)
    async with redis_ends(redis.url, host) as ends:
        caller = ends.send()
        (entry,) = await ends.shelf.holds(1)
        forgotten = host / "g" / "reply-1-ab"  # of the request above, which still waits
        forgotten.touch()
        os.truncate(forgotten, LARGE_REPLIES_BYTES)
        entry.finish(reply(4, elements=LARGE))
        assert await caller.value() == 4
        stats = await redis.client.info("stats")
        assert int(stats["total_net_input_bytes"]) > INLINE_BYTES
        await until(lambda: os.listdir(host / "g") == [])


async def test_a_full_lane_leaves_no_file(redis: RedisProcess, host: Path) -> None:
    async with redis_ends(redis.url, host) as ends:
        callers = [ends.send(n, elements=LARGE) for n in range(6)]
        await ends.shelf.holds(4)
        await until(lambda: sum(bool(caller.heard) for caller in callers) == 2)
        assert len(os.listdir(host / "g")) == 4
        while ends.shelf.entries:
            ends.shelf.take().finish(reply(1))
        await until(lambda: all(caller.heard for caller in callers))
        assert os.listdir(host / "g") == []


async def test_a_lost_redis_leaves_no_file(redis: RedisProcess, host: Path) -> None:
    """The second file is written while the first request finds that Redis is gone."""
    async with redis_ends(redis.url, host) as ends:
        redis.kill()
        callers = [ends.send(elements=LARGE), ends.send(elements=4 * 2**20)]
        for caller in callers:
            assert isinstance(await caller.outcome(), QueueUnavailableError)
        assert os.listdir(host / "g") == []
