"""Followers of jobs: one poll for all of a job, and every event once, in order, for each."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from services.errors import QueueUnavailableError
from services.trainer.followed_jobs import EVENTS_AT_ONCE, PAGES_AT_ONCE, FollowedJobs
from services.trainer.records import JobEvent, TrainingJob
from services.trainer.stores import transitions
from services.trainer.stores.sqlite_store import SqliteJobStore
from tests.fixtures.redis_servers import until

JOB = TrainingJob(id="0123456789abcdef", name="n", model="m", recipe="r", created_at=1.0)
FOLLOWERS = 20


class CountingStore(SqliteJobStore):
    """Counts reads, and fails them on demand."""

    look_every_s = 0.01
    reads = at_once = most_at_once = 0
    fails = False

    async def find(self, job_id: str) -> TrainingJob:
        """Counts."""
        self.reads += 1
        if self.fails:
            raise QueueUnavailableError("the file of jobs is away")
        return await super().find(job_id)

    async def events(self, job_id: str, after: int, limit: int) -> list[JobEvent]:
        """Counts."""
        self.reads += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await super().events(job_id, after, limit)
        finally:
            self.at_once -= 1


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CountingStore]:
    store = CountingStore(tmp_path / "jobs.sqlite", 100_000)
    job, events = transitions.submitted(JOB)
    assert await store.create(job, events)
    yield store
    await store.close()


async def happens(store: SqliteJobStore, count: int) -> None:
    """A worker reports events, unknown to this process until it looks."""
    job = await SqliteJobStore.find(store, JOB.id)
    if job.state == "queued":
        started = transitions.taken(job, "here", "worker", 2.0, 60.0)
        assert started is not None
        assert await store.swap(*started)
    assert await store.append(JOB.id, "worker", [line(number) for number in range(count)])


def line(number: int) -> JobEvent:
    return JobEvent(time=1.0, attempt=1, kind="log", text=f"line {number}")


class Follower:
    """One client, which counts what it has."""

    def __init__(self, jobs: FollowedJobs, after: int = 0) -> None:
        self.seen: list[int] = []
        self.task = asyncio.create_task(self._follow(jobs, after))

    async def _follow(self, jobs: FollowedJobs, after: int) -> None:
        with jobs.following(JOB.id) as job:
            async for events in job.pages(after):
                self.seen += [event.seq for event in events]


async def newest(store: SqliteJobStore) -> int:
    events: Sequence[JobEvent] = await SqliteJobStore.events(store, JOB.id, 0, 100_000)
    return events[-1].seq


async def test_idle_followers_cost_one_poll(store: CountingStore) -> None:
    jobs = FollowedJobs(store)
    followers = [Follower(jobs) for _ in range(FOLLOWERS)]
    await until(lambda: all(one.seen for one in followers))
    await until(lambda: store.reads > 4 * FOLLOWERS)  # all have looked once more, and wait
    store.reads = 0
    await happens(store, 1)
    last = await newest(store)
    await until(lambda: all(one.seen[-1] == last for one in followers))
    assert store.reads < FOLLOWERS, "each has read the event itself"
    for one in followers:
        one.task.cancel()
    await asyncio.wait([one.task for one in followers])
    store.reads = 0
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert store.reads <= 2, "it is polled though nobody follows it"


async def test_every_follower_has_every_event_once(store: CountingStore) -> None:
    jobs = FollowedJobs(store)
    followers = [Follower(jobs, after=10**17)]  # beyond all events
    await asyncio.sleep(0)
    for step in range(10):
        followers += [Follower(jobs), Follower(jobs, after=step)]
        await happens(store, 3 * EVENTS_AT_ONCE * (step % 2) + 1)
    job = await SqliteJobStore.find(store, JOB.id)
    ended = transitions.failed(job, "worker", 3.0, "it failed")
    assert ended is not None
    assert await store.swap(*ended)
    last = await newest(store)
    await asyncio.wait_for(asyncio.gather(*(one.task for one in followers)), 20)
    assert followers[0].seen == []
    for number, one in enumerate(followers[1:]):
        after = number // 2 if number % 2 else 0
        assert one.seen == list(range(after + 1, last + 1))


async def test_few_pages_come_to_the_loop_at_once(store: CountingStore) -> None:
    await happens(store, 10 * EVENTS_AT_ONCE)
    jobs = FollowedJobs(store)
    followers = [Follower(jobs) for _ in range(3 * PAGES_AT_ONCE)]
    last = await newest(store)
    await until(lambda: all(one.seen[-1:] == [last] for one in followers))
    assert store.most_at_once == PAGES_AT_ONCE
    jobs.end()
    await asyncio.wait_for(asyncio.gather(*(one.task for one in followers)), 10)


async def test_resumed_job_is_followed_anew(store: CountingStore) -> None:
    jobs = FollowedJobs(store)
    job = await SqliteJobStore.find(store, JOB.id)
    ended = transitions.cancelled(job, now=3.0)
    assert ended is not None
    assert await store.swap(*ended)
    with jobs.following(JOB.id) as job_before:
        assert [[e.seq for e in page] async for page in job_before.pages(0)] == [[1, 2]]
        resumed = transitions.resumed(ended[0], now=4.0)
        assert resumed is not None
        assert await store.swap(*resumed)
        one = Follower(jobs)
        await until(lambda: one.seen == [1, 2, 3])
        assert not one.task.done()
        jobs.end()
        await asyncio.wait_for(one.task, 10)


async def test_followers_of_a_job_share_it_while_those_of_before_it_was_resumed_leave(
    store: CountingStore,
) -> None:
    jobs = FollowedJobs(store)
    with contextlib.ExitStack() as before:
        job_before = before.enter_context(jobs.following(JOB.id))
        job_before.end()
        with jobs.following(JOB.id) as job:
            assert job is not job_before
            before.close()
            with jobs.following(JOB.id) as shared:
                assert shared is job
        with jobs.following(JOB.id) as anew:
            assert anew is not job, "a job that nobody follows is forgotten"


async def test_unavailable_store_ends_followers_with_its_error(store: CountingStore) -> None:
    jobs = FollowedJobs(store)
    one = Follower(jobs)
    await until(lambda: one.seen == [1])
    store.fails = True
    with pytest.raises(QueueUnavailableError, match="is away"):
        await asyncio.wait_for(one.task, 10)
    store.fails = False
    again = Follower(jobs)
    await until(lambda: again.seen == [1])
    jobs.end()
    await asyncio.wait_for(again.task, 10)
