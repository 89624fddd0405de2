"""Jobs are stored, run when no other request needs the worker, and finish once."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from services.errors import (
    BackendError,
    ConflictError,
    QueueFullError,
    ShuttingDownError,
    UnknownJobError,
    UnsupportedError,
)
from services.queueing.part_window import PartWindow
from services.queueing.records import JOB_PRIORITY, InferReply
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.dead_letters import DeadLetters
from services.queueing.redis_streams.jobs import JobLimits, Jobs
from services.queueing.redis_streams.keys import LaneKeys
from services.queueing.redis_streams.wire import INLINE_BYTES
from tests.fixtures.queue_ends import FURTHER, LANE, Shelf, redis_worker, reply, request
from tests.fixtures.redis_servers import RedisProcess, until_seen

LIMITS = JobLimits(max_waiting=4, result_ttl_s=60)


@pytest.fixture
async def jobs(redis: RedisProcess) -> AsyncIterator[Jobs]:
    jobs = Jobs(RedisClients(redis.url), LIMITS)
    running = asyncio.create_task(jobs.run())
    yield jobs
    running.cancel()
    await asyncio.wait([running])


async def submitted(jobs: Jobs, name: object = "r", key: str = "", timeout_s: float = 60) -> str:
    job_id, _ = await jobs.submit(
        request(name, priority=JOB_PRIORITY), timeout_s, idempotency_key=key
    )
    return job_id


async def test_a_job_waits_for_a_worker_and_keeps_its_result(
    redis: RedisProcess, jobs: Jobs
) -> None:
    job_id = await submitted(jobs)
    assert (await jobs.find(job_id)).state == "queued"
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf):
        (entry,) = await shelf.holds(1)
        assert entry.request.priority == JOB_PRIORITY
        assert (await jobs.find(job_id)).state == "running"
        shelf.take().finish(reply(7))
        job = await jobs.wait(job_id, 10)
    assert job.state == "done"
    assert isinstance(job.outcome, InferReply)
    assert job.outcome.outputs["y"][0, 0] == 7
    assert job.finished_at is not None
    assert job.finished_at >= job.created_at


async def test_waiting_ends_when_the_job_does(redis: RedisProcess, jobs: Jobs) -> None:
    job_id, shelf = await submitted(jobs), Shelf()
    async with redis_worker(redis.url, "w", shelf):
        await shelf.holds(1)
        waiting = [asyncio.create_task(jobs.wait(job_id, 30)) for _ in range(2)]
        assert (await jobs.wait(job_id, 0.05)).state == "running"
        shelf.take().finish(BackendError("broken"))
        for job in await asyncio.gather(*waiting):
            assert job.state == "failed"
            assert str(job.outcome) == "broken"


@pytest.mark.parametrize("parts", [0, 1])
async def test_a_job_takes_one_answer(redis: RedisProcess, jobs: Jobs, parts: int) -> None:
    """A model that answers in several parts, or in none, is told to stop."""
    job_id, shelf = await submitted(jobs), Shelf()
    async with redis_worker(redis.url, "w", shelf):
        await shelf.holds(1)
        entry = shelf.take()
        entry.window = PartWindow()
        for number in range(parts):
            entry.part(msgspec.structs.replace(reply(), number=number, is_last=False))
        if not parts:
            entry.finish(msgspec.structs.replace(reply(), outputs={}))
        job = await jobs.wait(job_id, 10)
        assert entry.dead
    assert job.state == "failed"
    assert isinstance(job.outcome, UnsupportedError)
    assert "answers in several parts or in none, and a job takes one" in str(job.outcome)


async def test_the_same_key_is_the_same_job(jobs: Jobs) -> None:
    first = await submitted(jobs, key="k")
    again = request("another name", priority=JOB_PRIORITY)
    assert await jobs.submit(again, 60, idempotency_key="k") == (first, False)
    assert await submitted(jobs, key="other") != first
    with pytest.raises(ConflictError, match="'k' belongs to job"):
        await jobs.submit(request(priority=JOB_PRIORITY, elements=2), 60, idempotency_key="k")


async def test_a_key_lives_as_long_as_its_job(redis: RedisProcess) -> None:
    jobs = Jobs(RedisClients(redis.url), JobLimits(max_waiting=4, result_ttl_s=1))
    running = asyncio.create_task(jobs.run())
    first, shelf = await submitted(jobs, key="k", timeout_s=3600), Shelf()
    async with redis_worker(redis.url, "w", shelf):
        await shelf.holds(1)
        shelf.take().finish(reply(1))
        assert (await jobs.wait(first, 10)).state == "done"

    async def is_new() -> bool:
        return await submitted(jobs, key="k", timeout_s=3600) != first

    await until_seen(is_new)
    running.cancel()
    await asyncio.wait([running])


async def test_a_job_may_be_for_one_artifact(redis: RedisProcess, jobs: Jobs) -> None:
    asked, further = request(priority=JOB_PRIORITY, lane=FURTHER), Shelf()
    job_id, _ = await jobs.submit(asked, 60)
    async with redis_worker(redis.url, "w", Shelf()) as worker:
        worker.open(FURTHER, further)
        await further.holds(1)
        further.take().finish(reply(7, lane=FURTHER))
        job = await jobs.wait(job_id, 10)
    assert (job.state, job.lane) == ("done", FURTHER)
    assert isinstance(job.outcome, InferReply)
    assert job.outcome.artifact == FURTHER.artifact
    assert [listed.lane for listed in await jobs.of_model("m")] == [FURTHER]


async def test_the_same_key_with_another_version_is_something_else(jobs: Jobs) -> None:
    asked = request(priority=JOB_PRIORITY)
    await jobs.submit(asked, 60, asked_for="1", idempotency_key="k")
    with pytest.raises(ConflictError):
        await jobs.submit(asked, 60, asked_for="2", idempotency_key="k")


async def test_a_large_payload_goes_with_its_job(redis: RedisProcess, jobs: Jobs) -> None:
    large = request(priority=JOB_PRIORITY, elements=INLINE_BYTES)
    payloads = f"{LaneKeys(LANE, jobs=True).payload}:*"
    job_id, _ = await jobs.submit(large, 60, idempotency_key="k")
    assert await jobs.submit(large, 60, idempotency_key="k") == (job_id, False)
    assert len(await redis.client.keys(payloads)) == 1
    await jobs.cancel(job_id)
    assert await redis.client.keys(payloads) == []


async def test_whoever_waits_is_answered_when_the_gateway_stops(jobs: Jobs) -> None:
    job_id = await submitted(jobs)
    waiting = asyncio.create_task(jobs.wait(job_id, 60))
    await asyncio.sleep(0)
    jobs.stop_waiting()
    async with asyncio.timeout(5):
        assert (await waiting).state == "queued"
        assert (await jobs.wait(job_id, 60)).state == "queued"


async def test_more_jobs_than_may_wait_are_refused(jobs: Jobs) -> None:
    for _ in range(LIMITS.max_waiting):
        await submitted(jobs)
    with pytest.raises(QueueFullError, match="4 jobs wait"):
        await submitted(jobs)


async def test_a_cancelled_job_does_not_run(redis: RedisProcess, jobs: Jobs) -> None:
    cancelled, stays = await submitted(jobs), await submitted(jobs, "stays")
    assert (await jobs.cancel(cancelled)).state == "cancelled"
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf):
        await shelf.holds(1)
        assert shelf.ids == ["stays"]
        assert (await jobs.cancel(stays)).state == "cancelled"
        await shelf.holds(0)  # the worker is told
    assert (await jobs.cancel(stays)).state == "cancelled"


async def test_a_job_that_is_over_stays_as_it_is(redis: RedisProcess, jobs: Jobs) -> None:
    job_id, shelf = await submitted(jobs), Shelf()
    async with redis_worker(redis.url, "w", shelf):
        await shelf.holds(1)
        shelf.take().finish(reply(1))
        assert (await jobs.wait(job_id, 10)).state == "done"
    assert (await jobs.cancel(job_id)).state == "done"


async def test_a_job_whose_time_is_up_is_expired(redis: RedisProcess, jobs: Jobs) -> None:
    job_id = await submitted(jobs, timeout_s=0.05)

    async def is_expired() -> bool:
        return (await jobs.find(job_id)).state == "expired"

    async def is_taken() -> bool:
        return not await redis.client.xlen(LaneKeys(LANE, jobs=True).streams[0])

    await until_seen(is_expired)
    async with redis_worker(redis.url, "w", Shelf()):
        await until_seen(is_taken)
    assert (await jobs.find(job_id)).state == "expired"


async def test_a_job_survives_the_worker_that_had_it(
    redis: RedisProcess, jobs: Jobs, impatient: None
) -> None:
    job_id, first, second = await submitted(jobs), Shelf(), Shelf()
    async with redis_worker(redis.url, "dies", first):
        await first.holds(1)
    async with redis_worker(redis.url, "lives", second):
        await second.holds(1)
        second.take().finish(reply(1))
        assert (await jobs.wait(job_id, 10)).state == "done"


async def test_a_model_s_jobs_are_listed_the_newest_first(jobs: Jobs) -> None:
    ids = [await submitted(jobs) for _ in range(3)]
    assert [job.id for job in await jobs.of_model(LANE.model)] == ids[::-1]
    assert await jobs.of_model("other") == []


@pytest.mark.parametrize(
    "job_id", ["", "m", "m.", "m.xyz", "m.0123456789abcdef", "m.-123456789abcdef"]
)
async def test_what_is_no_job_is_unknown(jobs: Jobs, job_id: str) -> None:
    with pytest.raises(UnknownJobError):
        await jobs.find(job_id)


async def test_a_job_that_outlasts_a_drain_is_no_suspect(redis: RedisProcess, jobs: Jobs) -> None:
    job_id, first, second = await submitted(jobs), Shelf(), Shelf()
    async with redis_worker(redis.url, "drains", first) as worker:
        await first.holds(1)
        running = first.take()
        draining = asyncio.create_task(worker.drain())
        await asyncio.sleep(0)
        running.finish(ShuttingDownError("it takes too long"))
        await draining
        async with redis_worker(redis.url, "stays", second):
            (entry,) = await second.holds(1)
            assert not entry.request.alone
            second.take().finish(reply(1))
            assert (await jobs.wait(job_id, 10)).state == "done"


async def test_a_dead_job_that_is_retried_runs_once_more(
    redis: RedisProcess, jobs: Jobs, impatient: None
) -> None:
    job_id, letters = await submitted(jobs, key="x:dead"), DeadLetters(RedisClients(redis.url))
    for name in ("dies", "dies too"):
        shelf = Shelf()
        async with redis_worker(redis.url, name, shelf):
            await shelf.holds(1)
    shelf = Shelf()
    async with redis_worker(redis.url, "lives", shelf):
        assert (await jobs.wait(job_id, 10)).state == "failed"
        (letter,) = await letters.all()
        assert await letters.retry(letter, 60)
        (entry,) = await shelf.holds(1)
        assert not entry.request.alone
        shelf.take().finish(reply(1))
        job = await jobs.wait(job_id, 10)
    assert job.state == "done"
    assert await letters.all() == []
    assert not await letters.retry(letter, 60)
    await letters.close()
