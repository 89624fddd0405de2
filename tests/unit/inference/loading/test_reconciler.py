"""The reconciler on a real store with tiny real ONNX models: live versions and their timing."""

import contextlib
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.manifest import Artifact, FileEntry, Manifest
from model_store.store import ModelStore
from services.errors import (
    ModelNotReadyError,
    UnknownModelError,
    UnknownVersionError,
)
from services.inference.loading import background_choice
from services.inference.loading.artifact_choice import ChoiceRules
from services.inference.loading.loader import (
    Candidates,
    LoadOptions,
)
from services.inference.loading.policy import LanePolicy
from services.queueing.records import Lane
from services.readiness import Look
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.running_reconciler import Running, running_reconciler


def only(artifact: str) -> LanePolicy:
    return LanePolicy(load=LoadOptions(artifact=artifact))


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with contextlib.AsyncExitStack() as stack:

        async def begin(**policy: object) -> Running:
            return await stack.enter_async_context(running_reconciler(tmp_path, **policy))

        yield begin


async def test_the_newest_version_is_live_without_a_pointer(tmp_path: Path, start: Start) -> None:
    publish(str(tmp_path), "m", linear(1))
    publish(str(tmp_path), "m", linear(2))
    running = await start()
    assert running.directory.live_version("m") == 2
    assert running.directory.versions("m") == [1, 2]


async def test_the_production_pointer_decides_and_moves(tmp_path: Path, start: Start) -> None:
    for scale in (1, 2, 3):
        publish(str(tmp_path), "m", linear(scale))
    running = await start(newest_versions=1)
    assert running.directory.versions("m") == [3]
    running.store.promote("m", 1)
    await running.until(lambda: running.directory.live_version("m") == 1)
    running.store.promote("m", 2)
    await running.until(lambda: running.directory.versions("m") == [2, 3])
    assert running.directory.live_version("m") == 2
    with pytest.raises(UnknownVersionError, match="served: 2, 3"):
        running.directory.find("m", "1")


async def test_a_pointer_moves_while_further_artifacts_load(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(tmp_path), "m", linear(1), linear(1))
    ModelStore(str(tmp_path)).promote("m", 1)
    running = await start(lane=LanePolicy(load=LoadOptions(keep=("onnx-1",))))
    may_read, read = threading.Event(), ModelStore.read_file

    def held(self: ModelStore, manifest: Manifest, entry: FileEntry, *rest: Any) -> bytes:
        if (manifest.version, entry.file) == (2, "model.1.onnx"):
            assert may_read.wait(60)
        return read(self, manifest, entry, *rest)

    monkeypatch.setattr(ModelStore, "read_file", held)
    publish(str(tmp_path), "m", linear(2), linear(2))
    await running.until(lambda: _states(running).get(2) == "ready")
    running.store.promote("m", 2)
    try:
        await running.until(lambda: running.directory.live_version("m") == 2)
        assert len(running.directory.find("m").artifacts) == 1
    finally:
        may_read.set()
    await running.until(lambda: len(running.directory.find("m").artifacts) == 2)


async def test_a_version_that_is_refused_again_is_logged_once(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    golden = {"x": np.ones((4, 4), np.float32)}
    publish(str(tmp_path), "m", linear(1), golden=golden, golden_outputs={"y": golden["x"] * 9})
    running = await start(retry_failed_s=0)
    await running.until(lambda: (counted(running)["failed_loads"] or 0) >= 3)
    assert [r.message for r in caplog.records].count("version refused") == 1


def counted(running: "Running") -> dict[str, float | None]:
    """Returns the metrics that alerts use."""
    value = running.metrics.registry.get_sample_value
    names, labels = ("failed_verifications", "failed_loads"), {"model": "m", "version": "1"}
    return {name: value(f"flambeau_{name}_total", labels) for name in names}


async def test_an_artifact_out_of_tolerance_gives_way_to_the_next(
    tmp_path: Path, start: Start
) -> None:
    wrong, right = linear(5), linear(1)
    publish(str(tmp_path), "m", wrong, right)  # golden outputs are those of the last one
    running = await start()
    assert running.directory.find("m").artifact == "onnx-1"
    assert counted(running) == {"failed_verifications": 1, "failed_loads": 0}


async def test_a_version_none_of_whose_artifacts_pass_says_why(
    tmp_path: Path, start: Start
) -> None:
    golden = {"x": np.ones((4, 4), np.float32)}
    publish(str(tmp_path), "m", linear(1), golden=golden, golden_outputs={"y": golden["x"] * 9})
    running = await start()
    with pytest.raises(ModelNotReadyError, match=r"largest difference 8 is above 0\.0001"):
        running.directory.resolve("m")
    ready = {"model": "m", "version": "1"}
    assert running.metrics.registry.get_sample_value("flambeau_model_ready", ready) == 0
    assert counted(running) == {"failed_verifications": 1, "failed_loads": 1}


async def test_counters_of_a_refused_version_begin_at_0(tmp_path: Path, start: Start) -> None:
    """Otherwise the first event after it loads would be invisible to `rate`."""
    golden = {"x": np.ones((4, 4), np.float32)}
    publish(str(tmp_path), "m", linear(1), golden=golden, golden_outputs={"y": golden["x"] * 9})
    value = (await start()).metrics.registry.get_sample_value
    labels = {"model": "m", "version": "1", "reason": "died"}
    assert value("flambeau_worker_restarts_total", labels) == 0


async def test_a_broken_new_version_leaves_the_old_one_live(tmp_path: Path, start: Start) -> None:
    publish(str(tmp_path), "m", linear(1))
    running = await start()
    golden = {"x": np.ones((4, 4), np.float32)}
    publish(str(tmp_path), "m", linear(1), golden=golden, golden_outputs={"y": golden["x"] * 9})
    await running.until(lambda: "2" in str(_states(running)))
    running.store.promote("m", 2)
    await running.until(lambda: _states(running).get(2) == "failed")
    assert running.directory.live_version("m") == 1


async def test_a_failed_version_is_tried_again_after_a_while(tmp_path: Path, start: Start) -> None:
    manifest = publish(str(tmp_path), "m", linear(1))
    artifact = tmp_path / "m" / "1" / manifest.artifacts[0].file.file
    good = artifact.read_bytes()
    artifact.write_bytes(good[:-1] + b"?")
    running = await start(retry_failed_s=0.0)
    assert _states(running) == {1: "failed"}
    artifact.write_bytes(good)
    await running.until(lambda: running.directory.live_version("m") == 1)


async def test_a_failed_version_is_not_tried_again_before_its_time(
    tmp_path: Path, start: Start
) -> None:
    golden = {"x": np.ones((4, 4), np.float32)}
    publish(str(tmp_path), "m", linear(1), golden=golden, golden_outputs={"y": golden["x"] * 9})
    running = await start(retry_failed_s=3600)
    for _ in range(3):
        running.passed.clear()
        await running.passed.wait()
    assert _states(running) == {1: "failed"}
    assert counted(running)["failed_loads"] == 1


async def test_a_removed_model_is_unloaded(tmp_path: Path, start: Start) -> None:
    publish(str(tmp_path), "gone", linear(1))
    publish(str(tmp_path), "stays", linear(1))
    running = await start()
    shutil.rmtree(tmp_path / "gone")
    await running.until(
        lambda: {s.lane.model for s in running.directory.all_versions()} == {"stays"}
    )
    with pytest.raises(UnknownModelError):
        running.directory.find("gone")


async def test_a_store_that_vanishes_changes_nothing(tmp_path: Path, start: Start) -> None:
    publish(str(tmp_path), "m", linear(1))
    running = await start()
    (tmp_path / "m").rename(tmp_path.with_name("elsewhere"))
    for _ in range(3):
        running.passed.clear()
        await running.passed.wait()
    assert running.directory.live_version("m") == 1


async def test_only_the_named_models_are_served(tmp_path: Path, start: Start) -> None:
    publish(str(tmp_path), "wanted", linear(1))
    publish(str(tmp_path), "other", linear(1))
    running = await start(models=("wanted",))
    assert {s.lane.model for s in running.directory.all_versions()} == {"wanted"}


async def test_the_named_artifact_is_the_only_candidate(tmp_path: Path, start: Start) -> None:
    publish(str(tmp_path), "m", linear(1), linear(1))
    running = await start(lane=only("onnx-1"))
    assert running.directory.find("m").artifact == "onnx-1"


async def test_an_artifact_that_is_not_there_is_named(tmp_path: Path, start: Start) -> None:
    publish(str(tmp_path), "m", linear(1))
    running = await start(lane=only("tensorrt"))
    with pytest.raises(ModelNotReadyError, match="no artifact 'tensorrt'; it has: onnx"):
        running.directory.resolve("m")


def _states(running: Running) -> dict[int, str]:
    return {s.lane.version: s.state for s in running.directory.all_versions()}


def measuring(*row_ms: float) -> Callable[..., float]:
    """In the place of `measure`: what the artifacts take, in the publisher's order."""

    def measure(*most: object) -> float:
        artifact = most[-1]
        assert isinstance(artifact, Artifact)
        return row_ms[int(artifact.name.partition("-")[2] or 0)]

    return measure


def chosen_by(file: Path) -> LanePolicy:
    return LanePolicy(load=LoadOptions(choice=ChoiceRules(budget_s=9, file=str(file))))


async def test_a_version_serves_by_the_publishers_figures_and_goes_over_to_the_fastest_here(
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_measure, file = threading.Event(), tmp_path.with_name(f"{tmp_path.name}.json")
    measure = measuring(3.0, 2.0, 1.0)

    def when_allowed(*most: object) -> float:
        may_measure.wait(20)
        return measure(*most)

    monkeypatch.setattr(background_choice, "measure", when_allowed)
    for model in ("a", "b"):
        publish(str(tmp_path), model, linear(2), linear(2), linear(2))
    with caplog.at_level(logging.INFO, "flambeau.loader"):
        running = await start(lane=chosen_by(file))
        assert running.directory.find("a").artifact == "onnx"
        may_measure.set()
        for model in ("a", "b"):
            await running.until(lambda m=model: running.directory.find(m).artifact == "onnx-2")  # type: ignore[misc]
        await running.until(lambda: len(chosen(caplog)) == 2)
    first, second = chosen(caplog)
    assert (first["artifact"], first["exchanged"], first["remembered"]) == ("onnx-2", True, False)
    assert first["row_ms"] == {"onnx": 3.0, "onnx-1": 2.0, "onnx-2": 1.0}
    assert (second["exchanged"], second["remembered"]) == (True, True)
    again = await start(lane=chosen_by(file))
    assert again.directory.find("a").artifact == "onnx-2"


async def test_measuring_that_fails_costs_nothing_but_a_line(
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> Candidates:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(background_choice, "find_fastest", broken)
    publish(str(tmp_path), "m", linear(2), linear(2))
    with caplog.at_level(logging.WARNING, "flambeau.loader"):
        running = await start(lane=chosen_by(tmp_path.with_name(f"{tmp_path.name}.json")))
        await running.until(lambda: "artifact not chosen" in caplog.messages)
    assert running.directory.find("m").artifact == "onnx"


async def test_no_version_is_measured_once_enough_time_was_spent(
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(background_choice, "MOST_MEASURING_S", 0.0)
    publish(str(tmp_path), "m", linear(2), linear(2))
    with caplog.at_level(logging.WARNING, "flambeau.loader"):
        running = await start(lane=chosen_by(tmp_path.with_name(f"{tmp_path.name}.json")))
        await running.until(lambda: any("time budget" in said for said in caplog.messages))
    assert running.directory.find("m").artifact == "onnx"


def chosen(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [r.__dict__ for r in caplog.records if r.message == "artifact chosen"]


async def test_a_word_of_keep_artifacts_that_keeps_nothing_is_named_for_each_version(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    publish(str(tmp_path), "one", linear(1), linear(1))
    publish(str(tmp_path), "two", linear(1))
    await start(lane=LanePolicy(load=LoadOptions(keep=("fats", "onnx-1", "all"))))
    found = [vars(record) for record in caplog.records if record.message == "artifact not kept"]
    assert sorted((log["model"], log["artifact"]) for log in found) == [
        ("one", "fats"),
        ("two", "fats"),
        ("two", "onnx-1"),
    ]
    assert {log["reason"] for log in found if log["artifact"] == "fats"} == {
        "keep_artifacts: the version has no such artifact (did you mean 'fast'?)"
    }


async def test_settings_of_a_model_that_the_store_does_not_have_are_named_once(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    publish(str(tmp_path), "digits", linear(1))
    running = await start(by_model={"digit": LanePolicy(), "digits": LanePolicy()})
    running.reconciler.look = Look(started=False)
    await running.until(lambda: running.reconciler.look.started)  # after another pass
    found = [
        vars(record)
        for record in caplog.records
        if record.message == "settings for an unknown model"
    ]
    ((model, reason),) = [(log["model"], log["reason"]) for log in found]
    assert model == "digit"
    assert reason == (
        f"model_settings: the store {tmp_path} has no such model (did you mean 'digits'?)"
    )


async def test_an_alias_moves_once_its_version_is_ready(tmp_path: Path, start: Start) -> None:
    """A request that names an alias does not fail while the alias moves."""
    store = ModelStore(str(tmp_path))
    publish(str(tmp_path), "m", linear(1))
    store.promote("m", 1)
    store.promote("m", 1, "canary")
    running = await start(newest_versions=0)
    directory = running.directory
    assert directory.aliases("m") == {"production": 1, "canary": 1}
    wrong = {"y": np.full((8, 4), 1000, np.float32)}
    publish(str(tmp_path), "m", linear(2), golden_outputs=wrong)
    store.promote("m", 2, "canary")
    refused = Lane("m", 2)
    await running.until(lambda: any(one.lane == refused and one.state == "failed"
                                    for one in directory.all_versions()))  # fmt: skip
    assert directory.resolve("m", "canary")[0].lane.version == 1
    publish(str(tmp_path), "m", linear(3))
    store.promote("m", 3, "canary")
    await running.until(lambda: directory.aliases("m")["canary"] == 3)
    assert directory.resolve("m", "canary")[0].lane.version == 3
    assert directory.resolve("m", "production")[0].lane.version == 1


async def test_newest_version_alone_becomes_live_where_no_alias_is_production(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for scale in (1, 2, 3):
        publish(str(tmp_path), "m", linear(scale))
    ModelStore(str(tmp_path)).promote("m", 1, "canary")
    running = await start(newest_versions=2)
    assert running.directory.versions("m") == [1, 2, 3]
    live = [vars(one)["version"] for one in caplog.records if one.message == "version live"]
    assert live == [3]


async def test_a_model_without_aliases_is_withdrawn_where_no_newest_versions_are_kept(
    tmp_path: Path, start: Start
) -> None:
    for scale in (1, 2, 3):
        publish(str(tmp_path), "m", linear(scale))
    store = ModelStore(str(tmp_path))
    store.set_aliases("m", {"a": 1, "b": 2})
    running = await start(newest_versions=0)
    assert running.directory.versions("m") == [1, 2]
    assert running.directory.live_version("m") == 2
    store.set_aliases("m", {"a": 1})
    await running.until(lambda: _states(running) == {1: "ready"})
    assert running.directory.live_version("m") == 1
    store.set_aliases("m", {})
    await running.until(lambda: not _states(running))
    store.set_aliases("m", {"c": 3})
    await running.until(lambda: running.directory.live_version("m") == 3)
