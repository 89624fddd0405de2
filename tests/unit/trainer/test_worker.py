"""Workers: each job has one at a time, whatever dies, and its events are stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from services.errors import QueueUnavailableError
from services.trainer.executors.executor import Failed, Stopped, Succeeded
from services.trainer.metrics import TrainerMetrics
from services.trainer.records import State, TrainingJob
from services.trainer.stores import transitions
from services.trainer.stores.job_store import READ_AT_ONCE, JobStore, change
from services.trainer.stores.sqlite_store import SqliteJobStore
from services.trainer.worker import TrainingWorker
from tests.fixtures.redis_servers import until_seen
from tests.fixtures.training_jobs import ScriptedExecutor, config, job, out_of_reach


class Working:
    """A worker that runs, and what it runs jobs with."""

    def __init__(
        self, store: JobStore, folder: Path, name: str, slots: int, runs_apart: bool
    ) -> None:
        self.store, self.executor = store, ScriptedExecutor(runs_apart)
        self.metrics = TrainerMetrics("test")
        found = config(folder, jobs_at_once=slots)
        self.worker = TrainingWorker(store, self.executor, found, self.metrics, name)
        self.task = asyncio.create_task(self.worker.run())

    async def begun(self) -> TrainingJob:
        return await asyncio.wait_for(self.executor.begun.get(), 10)

    async def cancelled(self) -> str:
        return await asyncio.wait_for(self.executor.cancels.get(), 10)

    async def die(self) -> None:
        """Ends as kill -9 would: no word to anybody."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def is_in(self, job_id: str, *states: State) -> TrainingJob:
        with self.store.bell.heard(job_id) as rung:
            async with asyncio.timeout(10):
                while (found := await self.store.find(job_id)).state not in states:
                    rung.clear()
                    await asyncio.wait([asyncio.create_task(rung.wait())], timeout=0.2)
        return found


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteJobStore]:
    store = SqliteJobStore(tmp_path / "jobs.db", 1000)
    yield store
    await store.close()


@asynccontextmanager
async def working(
    store: JobStore, folder: Path, name: str = "w", slots: int = 1, runs_apart: bool = False
) -> AsyncIterator[Working]:
    found = Working(store, folder, name, slots, runs_apart)
    try:
        yield found
    finally:
        found.task.cancel()
        await asyncio.wait([found.task])


def cut_off(store: JobStore, patch: pytest.MonkeyPatch) -> None:
    """Puts the store out of reach."""
    for name in ("find", "swap", "now", "append", "oldest"):
        patch.setattr(store, name, out_of_reach)


async def submitted(store: JobStore, name: str, **fields: object) -> TrainingJob:
    found = job(name, **fields)
    await store.create(*transitions.submitted(found))
    return found


async def cancel(store: JobStore, job_id: str) -> None:
    await change(store, job_id, partial(transitions.cancelled, now=await store.now()))


async def test_jobs_run_in_turn_and_tell_how_they_go(store: JobStore, tmp_path: Path) -> None:
    await submitted(store, "a", created_at=1.0)
    await submitted(store, "b", created_at=2.0)
    async with working(store, tmp_path) as w:
        first = await w.begun()
        assert (first.id, first.state, first.worker, first.attempts) == ("a", "running", "w", 1)
        assert w.executor.begun.empty(), "one at a time"
        heard = w.executor.listeners["a"]
        await heard.begun("/runs/a")
        await heard.log("a line")
        await heard.metric(2, {"val/loss": 0.5})
        w.executor.end("a", Succeeded(7))
        found = await w.is_in("a", "succeeded")
        assert (found.version, found.epoch, found.run_folder) == (7, 2, "/runs/a")
        events = await store.events("a", 0, 100)
        assert [(x.kind, x.text or x.metrics) for x in events] == [
            ("state", "submitted"),
            ("state", "started on w, attempt 1"),
            ("log", "works in /runs/a"),
            ("log", "a line"),
            ("metric", {"val/loss": 0.5}),
            ("state", "published tiny 7"),
        ]
        assert (await w.begun()).id == "b"
        w.executor.end("b", Failed("no data"))
        assert (await w.is_in("b", "failed")).error == "no data"
        assert w.metrics.registry.get_sample_value(
            "flambeau_training_finished_jobs_total", {"state": "failed"}
        ) == 1  # fmt: skip


async def test_a_worker_runs_as_many_as_it_may(store: JobStore, tmp_path: Path) -> None:
    for name in "abc":
        await submitted(store, name)
    async with working(store, tmp_path, slots=2) as w:
        assert {(await w.begun()).id, (await w.begun()).id} == {"a", "b"}
        assert w.executor.begun.empty()
        w.executor.end("b")
        assert (await w.begun()).id == "c"


async def test_two_workers_never_run_one_job(store: JobStore, tmp_path: Path) -> None:
    async with working(store, tmp_path, "v", 20) as v, working(store, tmp_path, "w", 20) as w:
        for n in range(20):
            await submitted(store, f"job{n}")
        begun: list[str] = []
        async with asyncio.timeout(20):
            while len(begun) < 20:
                takes = [asyncio.create_task(x.executor.begun.get()) for x in (v, w)]
                done, late = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
                begun += [task.result().id for task in done]
                for task in late:
                    task.cancel()
        assert sorted(begun) == sorted(set(begun))


async def test_a_dead_workers_job_is_taken_over_once(store: JobStore, tmp_path: Path) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path, "v") as v, working(store, tmp_path, "x", 1) as x:
        takes = {asyncio.create_task(y.begun()): y for y in (v, x)}
        done, late = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
        first = takes[done.pop()]
        (taking_over,) = late
        second = takes[taking_over]
        await first.die()
        assert (await taking_over).attempts == 2
        await second.die()
        async with working(store, tmp_path, "y") as third:
            found = await third.is_in("a", "failed", "succeeded")
            assert found.error.startswith("its worker died 2 times while it ran")
            assert third.executor.begun.empty()
            assert third.metrics.registry.get_sample_value(
                "flambeau_training_takeovers_total") == 1  # fmt: skip


async def test_a_worker_that_is_asked_to_stop_hands_its_job_back(
    store: JobStore, tmp_path: Path
) -> None:
    await submitted(store, "a")
    await submitted(store, "b")
    async with working(store, tmp_path) as w:
        await w.begun()
        w.worker.stop()
        w.executor.end("a", Stopped())
        await asyncio.wait_for(w.task, 10)
        found = await store.find("a")
        assert (found.state, found.deaths) == ("queued", 0)
        assert w.executor.begun.empty(), "no other job was begun"
    async with working(store, tmp_path, "v") as v:
        assert (await v.begun()).attempts == 2


async def test_a_cancelled_job_is_ended(store: JobStore, tmp_path: Path) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path) as w:
        await w.begun()
        await cancel(store, "a")
        await w.is_in("a", "cancelled")
        assert w.executor.cancelled == ["a"]
        assert w.executor.discarded == [], "it ended with its process"


async def test_what_runs_apart_is_cancelled_once_it_is_discarded(
    store: JobStore, tmp_path: Path
) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path, runs_apart=True) as w:
        await w.begun()
        w.executor.refusals = 2  # the API of the cluster falters
        await cancel(store, "a")
        found = await w.is_in("a", "cancelled")
        assert not found.cancel_asked
        assert w.executor.cancelled == ["a"]
        assert w.executor.discarded == ["a"] * 3
        assert w.metrics.registry.get_sample_value(
            "flambeau_training_finished_jobs_total", {"state": "cancelled"}) == 1  # fmt: skip


async def test_what_runs_apart_is_discarded_when_its_worker_has_handed_it_back(
    store: JobStore, tmp_path: Path
) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path, runs_apart=True) as w:
        await w.begun()
        w.worker.stop()
        w.executor.end("a", Stopped())
        await asyncio.wait_for(w.task, 10)
    await cancel(store, "a")
    assert (await store.find("a")).state == "queued", "its run may publish"
    async with working(store, tmp_path, "v", runs_apart=True) as v:
        await v.is_in("a", "cancelled")
        assert v.executor.discarded == ["a"]
        assert v.executor.begun.empty()


async def test_what_runs_apart_is_discarded_when_its_worker_has_died(
    store: JobStore, tmp_path: Path
) -> None:
    """Before it acted on the cancel; and whoever finds that has no slot left."""
    await submitted(store, "a", created_at=1.0)
    async with working(store, tmp_path, runs_apart=True) as w:
        await w.begun()
        await w.die()
    await cancel(store, "a")
    await submitted(store, "b", created_at=2.0)
    async with working(store, tmp_path, "v", runs_apart=True) as v:
        assert (await v.begun()).id == "b"
        await v.is_in("a", "cancelled")
        assert v.executor.discarded == ["a"]


async def test_of_any_number_of_jobs_none_is_overlooked(store: JobStore, tmp_path: Path) -> None:
    """More of them than are read in one go have living workers."""
    now = await store.now()
    for n in range(2 * READ_AT_ONCE + 1):
        found = await submitted(store, f"{n:04}", created_at=float(n))
        lease_s = -1.0 if n == 2 * READ_AT_ONCE else 1000.0
        assert await store.swap(*_taken(found, now, lease_s))
    async with working(store, tmp_path) as w:
        assert (await w.begun()).id == f"{2 * READ_AT_ONCE:04}"


def _taken(found: TrainingJob, now: float, lease_s: float) -> transitions.Change:
    change = transitions.taken(found, "other", "h", now, lease_s)
    assert change is not None
    return change


async def test_a_lease_is_renewed_as_long_as_the_job_runs(store: JobStore, tmp_path: Path) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path, "v") as v, working(store, tmp_path, "w") as w:
        takes = [asyncio.create_task(x.begun()) for x in (v, w)]
        _, late = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
        before = (await store.find("a")).lease_until
        with store.bell.heard("a") as rung:
            async with asyncio.timeout(10):
                while (await store.find("a")).lease_until < before + 1.5:  # the lease lasts 1 s
                    rung.clear()
                    await rung.wait()
        found = await store.find("a")
        assert found.attempts == 1
        assert found.revision < 20, "it is renewed now and then, not all the time"
        for task in late:
            task.cancel()
        await asyncio.wait(takes)


async def test_who_lost_its_lease_ends_the_job_itself(
    store: SqliteJobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path) as w:
        await w.begun()
        cut_off(store, monkeypatch)
        await w.cancelled()
        with pytest.raises(QueueUnavailableError):
            await store.find("a")
        assert not w.task.done(), "it goes on, for the store may come back"


async def test_outages_longer_than_a_lease_cost_a_job_no_life(
    store: SqliteJobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that runs nor one whose end nobody could be told; others look meanwhile."""
    await submitted(store, "a")
    async with working(store, tmp_path, "w", 2) as w:
        for attempt in (1, 2):
            assert (await w.begun()).attempts == attempt
            with monkeypatch.context() as outage:
                cut_off(store, outage)
                await w.cancelled()
        assert (await w.begun()).attempts == 3
        with monkeypatch.context() as outage:
            now, lease_until = store.now, (await store.find("a")).lease_until

            async def has_lapsed() -> bool:
                return await now() > lease_until

            cut_off(store, outage)
            w.executor.end("a", Succeeded(7))
            await until_seen(has_lapsed)
        found = await w.is_in("a", "succeeded", "failed", "queued")
        assert (found.state, found.version, found.deaths) == ("succeeded", 7, 0)
        events = [x.text for x in await store.events("a", 0, 100)]
        assert events.count("returned to the queue by w") == 2
        assert w.metrics.registry.get_sample_value("flambeau_training_takeovers_total") == 0


async def test_who_is_stopped_while_nobody_can_be_told_does_not_hang(
    store: SqliteJobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path) as w:
        await w.begun()
        cut_off(store, monkeypatch)
        w.worker.stop()
        await asyncio.wait_for(w.task, 10)


async def test_what_another_took_is_not_settled_by_who_lost_it(
    store: JobStore, tmp_path: Path
) -> None:
    await submitted(store, "a")
    async with working(store, tmp_path) as w:
        await w.begun()
        for later in (1e12, 2e12):  # silent, and then gone
            rule = partial(transitions.abandoned, now=later, takeovers=1, grace_s=1)
            await change(store, "a", rule)
        now = await store.now()
        await change(store, "a", lambda x: transitions.taken(x, "v", "other", now, 60))
        await w.cancelled()
        found = await store.find("a")
        assert (found.state, found.worker) == ("running", "v")
