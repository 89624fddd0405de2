"""Every store of training jobs keeps the same guarantees: SQLite, Redis, Valkey."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest

from services.errors import QueueUnavailableError, UnknownJobError
from services.queueing.redis_streams.clients import RedisClients
from services.trainer.records import JobEvent, TrainingJob
from services.trainer.stores import transitions
from services.trainer.stores.job_store import QUEUE, JobStore, change, each_in
from services.trainer.stores.redis_store import RedisJobStore
from services.trainer.stores.sqlite_store import SqliteJobStore
from tests.fixtures.redis_servers import running_redis
from tests.fixtures.training_jobs import job

MAX_EVENTS = 100
Open = Callable[[], JobStore]


@pytest.fixture(params=["sqlite", "valkey", "redis"])
async def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Open]:
    """Opens the same store, once for each simulated process."""
    # A busy disk is slow: response time is no guarantee of the stores.
    monkeypatch.setattr("services.queueing.redis_streams.clients.COMMAND_TIMEOUT_S", 10.0)
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            make: Open = partial(SqliteJobStore, tmp_path / "new" / "jobs.db", MAX_EVENTS)
        else:
            redis = await stack.enter_async_context(running_redis(request.param, tmp_path))
            make = lambda: RedisJobStore(RedisClients(redis.url), MAX_EVENTS)  # noqa: E731
        opened: list[tuple[JobStore, asyncio.Task[None]]] = []

        def open_one() -> JobStore:
            store = make()
            opened.append((store, asyncio.create_task(store.run())))
            return store

        yield open_one
        for store, running in opened:
            running.cancel()
            await asyncio.wait([running])
            await store.close()


@pytest.fixture
async def store(open_store: Open) -> JobStore:
    return open_store()


async def created(store: JobStore, found: TrainingJob) -> TrainingJob:
    assert await store.create(*transitions.submitted(found))
    return found


async def taken(store: JobStore, job_id: str, lease_s: float = 60) -> TrainingJob:
    now = await store.now()
    rule = partial(transitions.taken, worker="w", holder="h", now=now, lease_s=lease_s)
    found, applied = await change(store, job_id, rule)
    assert applied
    return found


async def test_a_job_is_kept_as_it_is(open_store: Open) -> None:
    wanted = job(recipe="name: ü\n", version=None, submitter="ann")
    await created(open_store(), wanted)
    another = open_store()
    assert await another.find(wanted.id) == wanted
    (event,) = await another.events(wanted.id, 0, 10)
    assert (event.seq, event.kind, event.state, event.text) == (
        1, "state", "queued", "submitted by ann",
    )  # fmt: skip


async def test_there_is_one_job_of_an_id(store: JobStore) -> None:
    first = await created(store, job())
    assert not await store.create(*transitions.submitted(job(recipe="another")))
    assert await store.find(first.id) == first
    assert len(await store.events(first.id, 0, 10)) == 1


async def test_an_unknown_job_is_unknown(store: JobStore) -> None:
    with pytest.raises(UnknownJobError, match="job 'abc' does not exist"):
        await store.find("abc")
    assert await store.events("abc", 0, 10) == []
    assert not await store.append("abc", "h", [JobEvent(kind="log", text="x")])
    assert not await store.swap(job("abc", revision=1), [])


async def test_of_two_who_change_a_job_one_is_too_late(store: JobStore) -> None:
    first = await created(store, job())
    one = transitions.taken(first, "one", "1", 100.0, 10)
    two = transitions.taken(first, "two", "2", 100.0, 10)
    assert one is not None
    assert two is not None
    outcomes = await asyncio.gather(store.swap(*one), store.swap(*two))
    assert sorted(outcomes) == [False, True]
    winner = await store.find(first.id)
    assert winner == (one if outcomes[0] else two)[0]
    assert [event.seq for event in await store.events(first.id, 0, 10)] == [1, 2]


async def test_many_changes_at_once_all_count(open_store: Open) -> None:
    first = await created(open_store(), job())
    stores = [open_store() for _ in range(3)]

    def count(found: TrainingJob) -> transitions.Change:
        changed = msgspec.structs.replace(
            found, attempts=found.attempts + 1, revision=found.revision + 1
        )
        return changed, [JobEvent(kind="log", text="+1")]

    await asyncio.gather(*(change(store, first.id, count) for store in stores for _ in range(5)))
    assert (await stores[0].find(first.id)).attempts == 15
    events = await stores[0].events(first.id, 0, 100)
    assert [event.seq for event in events] == list(range(1, 17))


async def test_only_who_holds_a_job_appends(store: JobStore) -> None:
    await created(store, job())
    event = JobEvent(kind="metric", epoch=3, metrics={"val/loss": 0.5}, time=7.0, attempt=1)
    assert not await store.append(job().id, "h", [event])
    await taken(store, job().id)
    assert not await store.append(job().id, "another", [event])
    assert await store.append(job().id, "h", [event, event])
    found = await store.events(job().id, 2, 10)
    assert [one.seq for one in found] == [3, 4]
    assert msgspec.structs.replace(found[0], seq=0) == event
    assert [one.seq for one in await store.events(job().id, 3, 10)] == [4]
    assert [one.seq for one in await store.events(job().id, 0, 1)] == [1]


async def test_of_leases_that_ran_out_only_a_takeover_counts(open_store: Open) -> None:
    """By the clock of the store: two outages longer than a lease, and then a worker that is gone.

    The one store is the worker's, the other that of somebody who looks for silent workers.
    """
    mine, theirs = open_store(), open_store()
    await created(mine, job())
    first = await taken(mine, job().id, lease_s=10)

    async def look(later_s: float) -> TrainingJob:
        rule = partial(transitions.abandoned, now=first.lease_until + later_s, takeovers=1,
                       grace_s=3)  # fmt: skip
        return (await change(theirs, job().id, rule))[0]

    for outage in (100.0, 200.0):
        found = await look(outage)
        assert (found.state, found.last_call) == ("running", True)
        back = first.lease_until + outage + 1
        found, kept = await change(
            mine, job().id, partial(transitions.renewed, holder="h", now=back, lease_s=10)
        )
        assert kept
        assert (await look(outage + 3.5)) == found, "whoever answered has its whole lease again"
    assert (await look(300.0)).state == "running"
    found = await look(303.5)
    assert (found.state, found.deaths, found.holder) == ("queued", 1, "")
    assert not await mine.append(job().id, "h", [JobEvent(kind="log", text="too late")])
    assert (await theirs.find(job().id)) == await mine.find(job().id) == found


async def test_the_newest_events_are_kept(store: JobStore) -> None:
    await created(store, job())
    await taken(store, job().id)
    for start in range(0, 3 * MAX_EVENTS, MAX_EVENTS):
        lines = [JobEvent(kind="log", text=str(start + n)) for n in range(MAX_EVENTS)]
        assert await store.append(job().id, "h", lines)
    kept = await store.events(job().id, 0, 10 * MAX_EVENTS)
    assert len(kept) == MAX_EVENTS
    assert (kept[-1].seq, kept[-1].text) == (2 + 3 * MAX_EVENTS, str(3 * MAX_EVENTS - 1))


async def test_jobs_are_listed_by_age_and_state(store: JobStore) -> None:
    for n, name in enumerate("abc"):
        await created(store, job(name, created_at=100.0 + n))
    await taken(store, "b")
    assert [x.id for x in await store.newest(None, 10)] == ["c", "b", "a"]
    assert [x.id for x in await store.newest(None, 2)] == ["c", "b"]
    assert [x.id for x in await store.newest("queued", 10)] == ["c", "a"]
    assert [x.id for x in await store.oldest("queued", 10)] == ["a", "c"]
    assert [x.id for x in await store.oldest("queued", 1, 1)] == ["c"]
    assert await store.oldest("queued", 1, 2) == []
    assert [x.id async for x in each_in(store, "queued", 1)] == ["a", "c"]
    assert [x.id for x in await store.oldest("running", 10)] == ["b"]
    assert await store.counts() == {
        "queued": 2, "running": 1, "succeeded": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    await store.forget("b")
    assert [x.id for x in await store.newest(None, 10)] == ["c", "a"]
    assert (await store.counts())["running"] == 0
    assert await store.events("b", 0, 10) == []


async def test_who_waits_hears_of_changes(open_store: Open) -> None:
    """Changes of another process are heard at once, or at the store's polling interval."""
    one, two = open_store(), open_store()
    await created(one, job("a"))
    with two.bell.heard("a") as of_job, two.bell.heard(QUEUE) as of_queue:
        one.bell.ring_all()
        for n in range(200):  # until the other listens
            await created(one, job(f"b{n}"))
            try:
                await asyncio.wait_for(of_queue.wait(), 0.05)
                break
            except TimeoutError:
                if two.look_every_s <= 0.5:
                    return
        of_job.clear()
        await taken(one, "a")
        await asyncio.wait_for(of_job.wait(), 5)
    with one.bell.heard("a") as own:
        await one.append("a", "h", [JobEvent(kind="log", text="x")])
        await asyncio.wait_for(own.wait(), 5)


async def test_time_is_unix_time(store: JobStore) -> None:
    import time

    assert abs(await store.now() - time.time()) < 5


async def test_a_store_out_of_reach_says_so(tmp_path: Path) -> None:
    gone = RedisJobStore(RedisClients(f"unix://{tmp_path}/nothing"), 10)
    with pytest.raises(QueueUnavailableError, match="unreachable"):
        await gone.counts()
    (tmp_path / "file").touch()
    with pytest.raises(QueueUnavailableError, match="cannot open the file of jobs"):
        SqliteJobStore(tmp_path / "file" / "jobs.db", 10)
    await gone.close()
