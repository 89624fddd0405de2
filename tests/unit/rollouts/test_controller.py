"""The controller on a real store: what it writes, when it moves pointers, and who does."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from model_store.pointers import Pointers
from model_store.rollouts import transitions
from model_store.rollouts.guards import Guards, RateGuard
from model_store.rollouts.traffic import Arm, Rollout, Shadow, Split, Traffic
from model_store.store import ModelStore
from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion
from services.rollouts.comparison_files import shadow_figures, split_evidence
from services.rollouts.controller import RolloutController
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence_files import EvidenceFiles
from services.rollouts.traffic_counts import TrafficCounts
from services.telemetry.rollout_metrics import RolloutMetrics
from tests.fixtures.store_versions import publish_in

ERRORS = Guards(
    errors=RateGuard(rate=0.05), disagreement=None, latency=None, nan=None, outputs=None
)
INTERVAL_S = 0.2


@dataclass
class Server:
    """A process with a directory that follows the pointers, as the reconciler makes it."""

    store: ModelStore
    process: str
    directory: Directory = field(default_factory=Directory)
    counts: TrafficCounts = field(default_factory=TrafficCounts)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.controller = RolloutController(
            self.store, self.directory, RolloutMetrics(self.registry), self.process, self.counts,
            interval_s=INTERVAL_S,
        )  # fmt: skip
        for version in (1, 2):
            self.directory.announce(ServedVersion(lane=Lane("digits", version), state="ready"))

    def follow(self) -> Pointers:
        pointers = self.store.pointers("digits")
        assert pointers is not None
        self.directory.set_traffic("digits", pointers.traffic)
        return pointers

    async def look(self) -> Pointers:
        """Looks once at what the pointers say now; returns what they say then."""
        self.follow()
        await self.controller.look()
        return self.follow()

    async def look_until(self, wanted: Callable[[Pointers], bool]) -> Pointers:
        async with asyncio.timeout(20):
            while True:
                pointers = await self.look()
                if wanted(pointers):
                    return pointers
                await asyncio.sleep(INTERVAL_S)

    def count(self, rollout: Rollout, requests: int, failed: int = 0, share: float = 0.5) -> None:
        """Counts requests of each version; `failed` are the candidate's."""
        evidence = self.counts.of(rollout.id)
        for number in range(requests):
            evidence.count_request(share, "live")
            evidence.count_request(share, "candidate", failed=number < failed)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    store = ModelStore(str(tmp_path / "store"))
    for _ in range(2):
        publish_in(store, tmp_path / "draft")
    store.promote("digits", 1)
    return store


def start(store: ModelStore, **fields: Any) -> Rollout:
    fields = {"steps": (0.5, 1.0), "every_s": 0, "guards": ERRORS, **fields}
    rollout = Rollout(candidate=2, baseline=1, **fields)
    store.point("digits", transitions.begun(store.pointers("digits"), rollout, "me", ""))
    return rollout


def files_of(store: ModelStore, rollout: Rollout) -> EvidenceFiles:
    return EvidenceFiles(store.storage, "digits", rollout.id)


def verdict_of(store: ModelStore, rollout: Rollout) -> dict[str, Any]:
    path = f"digits/rollouts/{rollout.id}/verdict.json"
    verdict: dict[str, Any] = json.loads(store.storage.get(path, 1_000_000))
    return verdict


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_good_candidate_is_promoted_step_by_step(store: ModelStore) -> None:
    async def work() -> None:
        server = Server(store, "a")
        rollout = start(store, steps=(0.1, 0.5, 1.0))
        server.count(rollout, 50, share=0.1)
        pointers = await server.look()
        assert pointers.traffic.rollout is not None
        assert pointers.traffic.rollout.step == 1
        assert server.metric("flambeau_rollout_step", model="digits", version="2") == 1
        server.count(rollout, 2_000)
        pointers = await server.look()
        assert pointers.aliases == {"production": 2}
        assert pointers.traffic.rollout is None
        assert pointers.who == "rollout controller a"
        assert pointers.evidence is not None
        assert pointers.evidence["decision"] == "promote"
        await server.look()
        assert server.metric("flambeau_rollout_step", model="digits", version="2") is None
        moves = [
            server.metric("flambeau_rollout_moves_total", model="digits", result=result)
            for result in ("advanced", "promoted", "rolled_back", "refused")
        ]
        assert moves == [1, 1, 0, 0]

    run(work())


@pytest.mark.parametrize("paused", [False, True])
def test_failing_candidate_is_rolled_back(
    store: ModelStore, caplog: pytest.LogCaptureFixture, paused: bool
) -> None:
    async def work() -> None:
        server = Server(store, "a")
        rollout = start(store, every_s=3600)
        if paused:
            before = store.pointers("digits")
            assert before is not None
            store.point("digits", transitions.paused(before, rollout.id, "me", "lunch"))
        server.count(rollout, 100, failed=60)
        with caplog.at_level(logging.INFO, "flambeau"):
            pointers = await server.look()
        assert pointers.aliases == {"production": 1}
        assert pointers.traffic.rollout is None
        assert pointers.why.startswith("the guard 'errors' is broken: candidate 60% (")
        assert pointers.evidence is not None
        assert pointers.evidence["counts"]["shares"]["0.5"]["candidate"]["errors"] == 60
        [log] = [one for one in caplog.records if one.message == "rollout moved"]
        assert (log.__dict__["result"], log.levelname) == ("rolled_back", "ERROR")
        [act] = [one for one in caplog.records if one.name == "flambeau.audit"]
        assert act.__dict__["act"] == "roll back"
        assert "version 2: the guard 'errors' is broken" in act.__dict__["why"]

    run(work())


def test_too_little_traffic_is_told_and_stays(store: ModelStore) -> None:
    async def work() -> None:
        server = Server(store, "a")
        rollout = start(store)
        server.count(rollout, 5)
        before = server.follow()
        for _ in range(3):
            assert await server.look() == before
        verdict = verdict_of(store, rollout)
        assert verdict["decision"] == "undecided"
        assert verdict["next_why"].startswith("too little traffic: the candidate has answered 5 ")
        assert (verdict["process"], verdict["step"], verdict["processes"]) == ("a", 0, 1)
        assert datetime.fromisoformat(verdict["when"]) <= datetime.now(UTC)

    run(work())


def test_counts_of_all_processes_decide(store: ModelStore) -> None:
    async def work() -> None:
        server, other = Server(store, "a"), Server(store, "b")
        rollout = start(store)
        server.count(rollout, 20)
        other.count(rollout, 20)
        await server.look()
        await other.look()
        pointers = server.follow()
        assert pointers.generation == 2, "40 of 2,000 requests prove nothing"
        other.count(rollout, 2_000)
        await other.look()
        assert (await server.look()).aliases == {"production": 2}

    run(work())


def test_version_that_failed_to_load_ends_it_without_the_lease(store: ModelStore) -> None:
    async def work() -> None:
        holder, other = Server(store, "a"), Server(store, "b")
        start(store, every_s=3600)
        await holder.look()
        lane = Lane("digits", 2)
        other.directory.announce(ServedVersion(lane=lane, state="failed", reason="no memory"))
        pointers = await other.look()
        assert pointers.traffic.rollout is None
        assert pointers.aliases == {"production": 1}
        assert pointers.why.startswith("version 2 failed to load on ")
        assert pointers.why.endswith(": no memory")
        assert other.metric("flambeau_rollout_moves_total", model="digits", result="refused") == 1
        assert await holder.look() == pointers

    run(work())


def test_peaks_outlive_the_process_that_saw_them(store: ModelStore) -> None:
    """An e-value that was high once counts, though later counts have lowered it."""

    async def work() -> None:
        rollout = start(store, every_s=3600)
        files_of(store, rollout).write("dead", Evidence(peaks={"errors": 50.0}))
        server = Server(store, "a")
        server.count(rollout, 1_000)
        pointers = await server.look()
        assert pointers.traffic.rollout is None
        assert files_of(store, rollout).read().total.peaks["errors"] == 50.0

    run(work())


def test_own_peaks_are_stored_before_a_move(store: ModelStore) -> None:
    async def work() -> None:
        rollout = start(store, every_s=3600)
        server = Server(store, "a")
        server.count(rollout, 100, failed=9)
        await server.look()
        first = files_of(store, rollout).read().total.peaks["errors"]
        assert first > 0
        server.count(rollout, 3_000)
        await server.look()
        assert files_of(store, rollout).read().total.peaks["errors"] == first

    run(work())


def test_damaged_file_is_logged_once_and_named_in_the_verdict(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        rollout = start(store)
        path = f"digits/rollouts/{rollout.id}/evidence/evil.json"
        store.storage.replace(path, b"{")
        server = Server(store, "a")
        server.count(rollout, 5)
        for _ in range(3):
            await server.look()
        assert list(verdict_of(store, rollout)["left_out"]) == [path]
        faults = [one for one in caplog.records if one.message == "a file of evidence was left out"]
        assert len(faults) == 1

    run(work())


def test_abort_between_look_and_move_wins(store: ModelStore) -> None:
    async def work() -> None:
        server = Server(store, "a")
        rollout = start(store)
        server.count(rollout, 100)
        server.follow()
        before = store.pointers("digits")
        assert before is not None
        aborted = store.point("digits", transitions.ended(before, rollout.id, "me", "no"))
        await server.controller.look()  # its directory still has the rollout
        assert store.pointers("digits") == aborted

    run(work())


def test_two_controllers_move_each_step_once(store: ModelStore) -> None:
    async def work() -> None:
        servers = [Server(store, name) for name in "abc"]
        steps = (0.1, 0.2, 0.3, 0.4, 1.0)
        rollout = start(store, steps=steps)
        for server in servers:
            for share in steps[:-1]:
                server.count(rollout, 2_000, share=share)
        await asyncio.gather(
            *(one.look_until(lambda now: now.aliases == {"production": 2}) for one in servers)
        )
        reached = [one.traffic.rollout for one in store.history("digits")]
        assert [one.step if one else None for one in reached] == [None, 0, 1, 2, 3, None]

    run(work())


def test_controller_that_is_killed_between_steps_is_replaced(store: ModelStore) -> None:
    async def work() -> None:
        killed = Server(store, "a")
        rollout = start(store, steps=(0.1, 0.5, 1.0))
        killed.count(rollout, 2_000, share=0.1)
        assert (await killed.look()).traffic.versions
        restarted = Server(store, "b")  # it begins to count anew
        restarted.count(rollout, 100, share=0.5)
        pointers = await restarted.look_until(lambda now: not now.traffic)
        assert pointers.aliases == {"production": 2}
        assert pointers.evidence is not None
        shares = pointers.evidence["counts"]["shares"]
        assert shares["0.1"]["candidate"]["requests"] == 2_000
        assert shares["0.5"]["candidate"]["requests"] == 100

    run(work())


def test_unreachable_store_hinders_no_other_rollout(
    store: ModelStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        publish_in(store, tmp_path / "draft", "broken")
        server = Server(store, "a")
        rollout = start(store)
        other = Rollout(candidate=2, baseline=1, steps=(0.5,), every_s=0)
        (tmp_path / "store" / "broken" / "rollouts").write_text("a file in place of the folder")
        traffic = server.follow().traffic
        server.directory.announce(ServedVersion(lane=Lane("broken", 1), state="ready"))
        server.directory.set_traffic("broken", traffic.model_copy(update={"rollout": other}))
        server.count(rollout, 2_000)
        assert (await server.look()).aliases == {"production": 2}
        faults = [one for one in caplog.records if one.message == "a rollout cannot be looked at"]
        assert [one.__dict__["model"] for one in faults] == ["broken"]

    run(work())


def test_counts_are_written_a_last_time_at_the_end(store: ModelStore) -> None:
    async def work() -> None:
        server, stop = Server(store, "a"), asyncio.Event()
        rollout = start(store, every_s=3600)
        server.follow()
        server.count(rollout, 3)
        stop.set()
        await server.controller.run(stop)
        found = files_of(store, rollout).read()
        assert found.total.counts["share/500000/candidate/requests"] == 3

    run(work())


def test_counts_outlive_the_models_of_a_server_that_stops(store: ModelStore) -> None:
    """Its reconciler withdraws them before the last write."""

    async def work() -> None:
        server, stop = Server(store, "a"), asyncio.Event()
        rollout = start(store, every_s=3600)
        shadow = Shadow(candidate=2, sample=0.1)
        server.directory.set_traffic("digits", Traffic(rollout=rollout, shadow=shadow))
        await server.controller.look()
        server.count(rollout, 3)
        server.counts.shadow(shadow.id).drop("busy")
        server.directory.set_traffic("digits", None)
        stop.set()
        await server.controller.run(stop)
        found = files_of(store, rollout).read()
        assert found.total.counts["share/500000/candidate/requests"] == 3
        figures, _ = shadow_figures(store.storage, "digits", shadow.id)
        assert figures is not None
        assert figures.dropped == {"busy": 1}

    run(work())


def test_counts_that_begin_anew_are_added(store: ModelStore) -> None:
    """A server that loses sight of a rollout for a while, and one whose process restarts."""

    async def work() -> None:
        server, rollout = Server(store, "a"), start(store, every_s=3600)
        await server.look()
        for requests in (5, 3, 4):
            server.count(rollout, requests)
            server.directory.set_traffic("digits", None)
            await server.controller.look()
            await server.look()
        total = files_of(store, rollout).read().total
        assert total.counts["share/500000/candidate/requests"] == 12
        same = Server(store, "a")  # a name that was given twice
        same.count(rollout, 1)
        await same.look()
        assert files_of(store, rollout).read().total == total

    run(work())


def test_process_that_only_counts_moves_nothing(store: ModelStore) -> None:
    async def work() -> None:
        server = Server(store, "edge")
        server.controller = RolloutController(
            store, server.directory, RolloutMetrics(server.registry), "edge", server.counts,
            controls=False, interval_s=INTERVAL_S,
        )  # fmt: skip
        rollout = start(store)
        server.count(rollout, 2_000)
        before = server.follow()
        for _ in range(3):
            assert await server.look() == before
        assert files_of(store, rollout).read().processes == 1
        assert (await Server(store, "model").look()).aliases == {"production": 2}

    run(work())


def test_counts_of_splits_and_shadows_are_written(store: ModelStore) -> None:
    async def work() -> None:
        server = Server(store, "edge")
        split = Split(name="two", arms=(Arm(version=1, share=0.5), Arm(version=2, share=0.5)))
        shadow = Shadow(candidate=2, sample=0.1)
        server.directory.set_traffic("digits", Traffic(split=split, shadow=shadow))
        server.counts.arm(split.id, 2).count(0.5, "candidate", 0.001)
        server.counts.shadow(shadow.id).drop("busy")
        await server.controller.look()
        found = split_evidence(store.storage, "digits", split)[2]
        assert found.total.counts["share/500000/candidate/requests"] == 1
        figures, left_out = shadow_figures(store.storage, "digits", shadow.id)
        assert figures is not None
        assert (figures.dropped, left_out) == ({"busy": 1}, {})
        server.counts.shadow(shadow.id).drop("busy")
        stop = asyncio.Event()
        stop.set()
        await server.controller.run(stop)
        figures, _ = shadow_figures(store.storage, "digits", shadow.id)
        assert figures is not None
        assert figures.dropped == {"busy": 2}

    run(work())


def test_step_lasts_its_time(store: ModelStore) -> None:
    async def work() -> None:
        server = Server(store, "a")
        began = datetime.now(UTC) - timedelta(seconds=50)
        rollout = start(store, every_s=60, step_began=began)
        server.count(rollout, 2_000)
        await server.look()
        assert verdict_of(store, rollout)["next_why"].startswith("the step lasts until ")

    run(work())
