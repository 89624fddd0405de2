"""Loaded versions within a device's memory: admission, refusal, eviction."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.errors import ModelNotReadyError
from services.inference.backends.device import CPU, Device
from services.inference.loading import lanes as lanes_module
from services.inference.loading import load_turns
from services.inference.loading.loader import LoadedVersion, LoadOptions, load_version
from services.inference.loading.memory_admission import OutOfMemoryError
from services.inference.loading.policy import LanePolicy, ServingPolicy
from services.queueing.records import InferReply, Lane
from tests.fixtures.fake_backends import DoublingBackend
from tests.fixtures.loaded_lanes import BASE_BYTES, LoadedLanes, fix_memory, unloading_at_the_end
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import until

A, B, C = (Lane(name, 1) for name in "abc")


class Serving(LoadedLanes):
    """Lanes over a store of three models of the same size, one file of which is a unit."""

    def __init__(self, folder: Path, tasks: asyncio.TaskGroup) -> None:
        super().__init__(str(folder), tasks)
        manifests = [publish(str(folder), lane.model, linear(2)) for lane in (A, B, C)]
        self.unit_bytes = manifests[0].artifacts[0].file.size_bytes
        self.limit(0)

    def limit(self, units: float, **policy: object) -> None:
        """Starts anew with room for so many models; 0 for no limit."""
        made = ServingPolicy(
            newest_versions=1,
            poll_interval_s=1,
            retry_failed_s=1,
            max_memory_bytes=int(units and BASE_BYTES + units * self.unit_bytes),
        )
        self.begin(dataclasses.replace(made, **policy))  # type: ignore[arg-type]

    async def load(self, *lanes: Lane) -> None:
        for lane in lanes:
            await self.load_one(lane)

    def states(self) -> dict[str, str]:
        return {s.lane.model: s.state for s in self.directory.all_versions()}


@pytest.fixture
async def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    fix_memory(monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        made = Serving(tmp_path, tasks)
        with unloading_at_the_end(made):
            yield made


async def test_a_loaded_version_takes_requests_and_is_announced(serving: Serving) -> None:
    assert not await serving.serves(A)
    await serving.load(A)
    assert await serving.serves(A)
    assert A in serving.lanes
    assert (serving.lanes.loaded(), serving.lanes.loaded("b")) == ([A], [])
    served, _ = serving.directory.resolve("a", "1")
    assert (served.state, served.artifact, served.platform) == ("ready", "onnx", "onnx_onnxv1")
    assert serving.gauge("model_ready", A) == 1
    assert serving.gauge("model_memory_bytes", A) == serving.unit_bytes


async def test_what_does_not_fit_is_refused_with_the_figures(serving: Serving) -> None:
    serving.limit(1.5)
    await serving.load(A)
    with pytest.raises(OutOfMemoryError, match=r"'b' version 1 needs .* and does not fit: "):
        await serving.load(B)
    assert B not in serving.lanes
    assert await serving.serves(A)


async def test_what_turns_out_too_large_once_loaded_is_closed_again(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = DoublingBackend()
    monkeypatch.setattr(backend, "process_bytes", lambda: 10**7)
    _load_with(monkeypatch, backend)
    serving.limit(2)
    with pytest.raises(OutOfMemoryError, match="'a' version 1 needs 10 MiB"):
        await serving.load(A)
    assert backend.closed.is_set()
    assert A not in serving.lanes
    monkeypatch.setattr(lanes_module, "load_version", None)
    with pytest.raises(OutOfMemoryError, match="'a' version 1 needs 10 MiB"):
        await serving.load(A)  # its memory is known, so it is not opened again


async def test_version_that_loads_for_long_keeps_the_memory_it_is_expected_to_take(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_open = threading.Event(), threading.Event()

    def load(store: ModelStore, manifest: Manifest, options: LoadOptions) -> LoadedVersion:
        if manifest.model == "a":
            begun.set()
            assert may_open.wait(10)
        return load_version(store, manifest, options)

    monkeypatch.setattr(lanes_module, "load_version", load)
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.01)
    serving.limit(1.5, by_model={"a": LanePolicy(is_apart=True)})
    slow = asyncio.create_task(serving.load(A))
    await asyncio.to_thread(begun.wait)
    with pytest.raises(OutOfMemoryError, match="taken by 1 other versions") as refused:
        await serving.load(B)
    assert refused.value.is_passing
    may_open.set()
    await slow
    assert serving.states() == {"a": "ready"}


async def test_the_idle_version_used_longest_ago_makes_room(serving: Serving) -> None:
    serving.limit(2, unload_idle=True)
    await serving.load(A, B)
    assert await serving.serves(A)  # so B was used longest ago
    await serving.load(C)
    assert serving.states() == {"a": "ready", "b": "unloaded", "c": "ready"}
    assert not await serving.serves(B)
    assert await serving.serves(A)
    assert await serving.serves(C)


async def test_a_version_at_work_makes_no_room(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = DoublingBackend()
    backend.gate.clear()
    serving.limit(1, unload_idle=True)
    with monkeypatch.context() as patch:
        _load_with(patch, backend)
        await serving.load(A)
    answer = serving.ask(A)
    await asyncio.to_thread(backend.started.wait)
    with pytest.raises(OutOfMemoryError):
        await serving.load(B)
    backend.gate.set()
    assert isinstance(await answer, InferReply)
    await serving.load(B)
    assert serving.states() == {"a": "unloaded", "b": "ready"}


async def test_an_unloaded_version_is_wanted_again_once_it_is_asked_for(serving: Serving) -> None:
    serving.limit(1, unload_idle=True)
    await serving.load(A, B)
    assert not serving.directory.is_missed(A)
    with pytest.raises(ModelNotReadyError, match=r"make room for model 'b' version 1; being loade"):
        serving.directory.resolve("a", "1")
    assert serving.directory.is_missed(A)
    await serving.load(A)
    assert serving.states() == {"a": "ready", "b": "unloaded"}
    assert await serving.serves(A)


async def test_what_makes_room_is_closed_before_the_next_is_loaded_and_measured(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving, closed = DoublingBackend(), []
    serving.limit(1, unload_idle=True)
    with monkeypatch.context() as patch:
        _load_with(patch, leaving)
        await serving.load(A)

    def load(store: ModelStore, manifest: Manifest, options: LoadOptions) -> LoadedVersion:
        closed.append(leaving.closed.is_set())
        return load_version(store, manifest, options)

    monkeypatch.setattr(lanes_module, "load_version", load)
    await serving.load(B)
    assert closed == [True]


async def test_versions_that_load_at_once_are_measured_one_after_the_other(
    serving: Serving,
) -> None:
    serving.limit(1)
    outcomes = await asyncio.gather(serving.load(A), serving.load(B), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == [
        "NoneType",
        "OutOfMemoryError",
    ]
    assert len(serving.lanes.loaded()) == 1


async def test_a_version_that_leaves_answers_what_it_holds(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = DoublingBackend()
    backend.gate.clear()
    _load_with(monkeypatch, backend)
    await serving.load(A)
    running, waiting = serving.ask(A), serving.ask(A)
    await asyncio.to_thread(backend.started.wait)
    serving.lanes.unload(A)
    assert serving.states() == {}
    assert A in serving.lanes
    assert not serving.lanes.loaded()
    assert not backend.closed.is_set()
    backend.gate.set()
    assert isinstance(await running, InferReply)
    assert isinstance(await waiting, InferReply)
    assert await asyncio.to_thread(backend.closed.wait, 10)


async def test_gauges_of_a_version_stay_until_it_has_answered_all(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = DoublingBackend()
    backend.gate.clear()
    _load_with(monkeypatch, backend)
    await serving.load(A)
    running = serving.ask(A)
    await asyncio.to_thread(backend.started.wait)
    for _ in range(2):  # it is asked to leave again while it leaves
        serving.lanes.unload(A)
        assert serving.gauge("model_memory_bytes", A) is not None
    backend.gate.set()
    assert isinstance(await running, InferReply)
    assert await asyncio.to_thread(backend.closed.wait, 10)
    await until(lambda: A not in serving.lanes)
    assert serving.gauge("model_memory_bytes", A) is None


async def test_gauges_of_a_version_that_never_loaded_go_with_it(serving: Serving) -> None:
    serving.metrics.model_ready.labels("a", "1").set(0)
    serving.lanes.unload(A)
    assert serving.gauge("model_ready", A) is None


async def test_each_model_is_run_by_its_own_policy(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, LoadOptions] = {}

    def load(store: ModelStore, manifest: Manifest, options: LoadOptions) -> LoadedVersion:
        asked[manifest.model] = options
        return load_version(store, manifest, options)

    monkeypatch.setattr(lanes_module, "load_version", load)
    serving.limit(0, by_model={"a": LanePolicy(load=LoadOptions(instances=2))})
    await serving.load(A, B)
    assert (asked["a"].instances, asked["b"].instances) == (2, 1)


def test_a_device_runs_as_many_batches_at_once_as_was_said() -> None:
    policy = ServingPolicy(newest_versions=1, poll_interval_s=1, retry_failed_s=1)
    assert policy.slots(CPU) >= 1
    assert policy.slots(Device("cuda")) == 2
    for device in (CPU, Device("cuda")):
        assert dataclasses.replace(policy, max_concurrent_runs=3).slots(device) == 3


def _load_with(patch: pytest.MonkeyPatch, backend: DoublingBackend) -> None:
    """Makes later loads run on this backend."""

    def load(store: ModelStore, manifest: Manifest, options: LoadOptions) -> LoadedVersion:
        loaded = load_version(store, manifest, options)
        for opened in loaded.backends:
            opened.close()
        return dataclasses.replace(loaded, backends=[backend])

    patch.setattr(lanes_module, "load_version", load)
