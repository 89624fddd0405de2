"""Artifacts that are loaded beside the serving one, and their unloading."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.manifest import Artifact, Manifest, Precision
from model_store.metric import MeasuredMetric, better_of
from model_store.store import ModelStore
from services.inference.backends.backend import Backend
from services.inference.loading import background_choice
from services.inference.loading import lanes as lanes_module
from services.inference.loading.artifact_choice import ChoiceRules
from services.inference.loading.background_choice import find_fastest
from services.inference.loading.kept_artifacts import accuracy_loss, is_accurate, kept_names
from services.inference.loading.loader import LoadedVersion, LoadError, LoadOptions, load_version
from services.inference.loading.policy import LanePolicy, ServingPolicy
from services.queueing.records import Lane
from tests.fixtures.loaded_lanes import BASE_BYTES, LoadedLanes, fix_memory, unloading_at_the_end
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import until

LANE, OTHER = Lane("m", 1), Lane("other", 1)
PRECISIONS: tuple[Precision, ...] = ("int8", "fp32", "bf16", "fp32")
NAMES = ("onnx", "onnx-1", "onnx-2", "onnx-3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a store of one version with four equivalent artifacts, and of a larger model."""
    folder = tmp_path_factory.mktemp("kept")
    publish(str(folder), "m", *(linear(2, layers=n) for n in range(4)), precisions=PRECISIONS)
    publish(str(folder), "other", linear(2, layers=3))
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return ModelStore(str(folder)).manifest("m", 1)


def measured(manifest: Manifest, metrics: Mapping[str, float], agreement: float) -> Artifact:
    artifact = manifest.artifacts[0]
    verification = artifact.verification.model_copy(
        update={"metrics": dict(metrics), "agreement": agreement}
    )
    return artifact.model_copy(update={"verification": verification})


@pytest.mark.parametrize(
    ("checkpoint", "own", "agreement", "loss"),
    [
        ({"test/accuracy": 0.9}, {"accuracy": 0.88}, 1.0, 0.02),
        ({"test/accuracy": 0.9}, {"accuracy": 0.95}, 0.5, 0.0),
        (
            {"test/accuracy": 0.9, "test/exact_match": 0.8},
            {"accuracy": 0.9, "exact_match": 0.7},
            1.0,
            0.1,
        ),
        ({}, {"accuracy": 0.9}, 0.97, 0.03),
        ({"test/loss": 2.0}, {}, 1.0, 0.0),
    ],
)
def test_what_an_artifact_loses(
    manifest: Manifest,
    checkpoint: dict[str, float],
    own: dict[str, float],
    agreement: float,
    loss: float,
) -> None:
    lineage = manifest.lineage.model_copy(update={"metrics": checkpoint})
    known = manifest.model_copy(update={"lineage": lineage})
    artifact = measured(manifest, own, agreement)
    assert accuracy_loss(known, artifact) == pytest.approx(loss)
    assert is_accurate(known, artifact, "balanced") is (loss <= 0.005)


@pytest.mark.parametrize(
    ("name", "before", "after", "loss"),
    [
        ("rmse", 50.0, 50.2, 0.004),
        ("rmse", 50.0, 60.0, 0.2),
        ("rmse", 50.0, 40.0, 0.0),
        ("rmse", 0.0, 1.0, 1.0),
        ("f1", 0.9, 0.88, 0.02),
    ],
)
def test_what_an_artifact_loses_by_what_judges_it(
    manifest: Manifest, name: str, before: float, after: float, loss: float
) -> None:
    lineage = manifest.lineage.model_copy(update={"metrics": {f"test/{name}": before}})
    known = manifest.model_copy(update={"lineage": lineage})
    judged_by = MeasuredMetric(name=name, value=after, better=better_of(name))
    artifact = measured(manifest, {name: after}, agreement=1.0)
    proof = artifact.verification.model_copy(update={"judged_by": judged_by})
    artifact = artifact.model_copy(update={"verification": proof})
    assert accuracy_loss(known, artifact) == pytest.approx(loss)
    assert is_accurate(known, artifact, "balanced") is (loss <= 0.005)


@pytest.mark.parametrize(
    ("keep", "default", "row_ms", "names"),
    [
        ([], "onnx", {}, []),
        (["onnx-2"], "onnx", {}, ["onnx-2"]),
        (["onnx"], "onnx", {}, []),
        (["onnx-9"], "onnx", {}, []),
        (["all"], "onnx-1", {}, ["onnx", "onnx-2", "onnx-3"]),
        (["exact"], "onnx", {}, ["onnx-1"]),
        (["exact"], "onnx", {"onnx-1": 3, "onnx-3": 2}, ["onnx-3"]),
        (["exact"], "onnx-1", {"onnx-1": 2.0, "onnx-3": 1.96}, []),
        (["exact", "fast"], "onnx-2", {"onnx": 1, "onnx-3": 2, "onnx-2": 3}, ["onnx-3", "onnx"]),
        (["fast", "exact", "onnx-1", "all"], "onnx", {}, ["onnx-1", "onnx-2", "onnx-3"]),
    ],
)
def test_what_is_kept(
    manifest: Manifest, keep: list[str], default: str, row_ms: dict[str, float], names: list[str]
) -> None:
    assert kept_names(manifest, keep, default, manifest.artifacts, row_ms) == names


@given(
    keep=st.lists(st.sampled_from(["exact", "balanced", "fast", "all", *NAMES])),
    default=st.sampled_from(NAMES),
    row_ms=st.dictionaries(st.sampled_from(NAMES), st.floats(0.001, 100)),
)
def test_each_is_kept_once_and_the_default_never(
    manifest: Manifest, keep: list[str], default: str, row_ms: dict[str, float]
) -> None:
    found = kept_names(manifest, keep, default, manifest.artifacts, row_ms)
    assert len({*found, default}) == len(found) + 1
    assert {*found} <= {*NAMES}
    if "exact" in keep:
        precision = dict(zip(NAMES, PRECISIONS, strict=True))
        assert "fp32" in [precision[name] for name in (*found, default)]


def served(folder: Path, manifest: Manifest, **options: object) -> tuple[str, Mapping[str, float]]:
    """The name of what is loaded, and what was measured."""
    loaded = load_version(ModelStore(str(folder)), manifest, LoadOptions(**options))  # type: ignore[arg-type]
    for backend in loaded.backends:
        backend.close()
    return loaded.artifact.name, loaded.row_ms


def test_the_artifact_that_serves_gives_the_accuracy_that_is_set(
    folder: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_ms = {"onnx": 1.0, "onnx-1": 4.0, "onnx-2": 2.0, "onnx-3": 3.0}
    asked: list[str] = []

    def measure(*most: object) -> float:
        artifact = most[-1]
        assert isinstance(artifact, Artifact)
        asked.append(artifact.name)
        return row_ms[artifact.name]

    monkeypatch.setattr(background_choice, "measure", measure)
    assert served(folder, manifest, accuracy="exact") == ("onnx-1", {})
    rules = ChoiceRules(budget_s=9, file=str(folder.with_name("choices.json")))

    def choose(**options: object) -> None:
        made = LoadOptions(choice=rules, **options)  # type: ignore[arg-type]
        assert find_fastest(ModelStore(str(folder)), manifest, made, threading.Event())

    choose(accuracy="exact")
    assert served(folder, manifest, accuracy="exact", choice=rules)[0] == "onnx-3"
    assert asked == ["onnx-1", "onnx-3"]
    choose(accuracy="exact", keep=("fast",))
    assert served(folder, manifest, accuracy="exact", keep=("fast",), choice=rules) == (
        "onnx-3",
        row_ms,
    )
    assert served(folder, manifest, accuracy="exact", artifact="onnx")[0] == "onnx"


def test_no_artifact_is_served_that_gives_less(folder: Path) -> None:
    manifest = publish(str(folder), "rough", linear(2), precisions=("int8",))
    with pytest.raises(LoadError, match=r"is exact \(accuracy=exact\); it has: onnx \(int8\)"):
        served(folder, manifest, accuracy="exact")


class Serving(LoadedLanes):
    """Lanes over the store."""

    def keep(self, *names: str, max_memory_bytes: int = 0, unload_idle: bool = False) -> None:
        """Starts anew, with these kept beside what serves."""
        self.begin(
            ServingPolicy(
                newest_versions=1,
                poll_interval_s=1,
                retry_failed_s=1,
                lane=LanePolicy(load=LoadOptions(keep=names)),
                max_memory_bytes=max_memory_bytes,
                unload_idle=unload_idle,
            )
        )

    async def load(self, *lanes: Lane) -> None:
        for lane in lanes:
            await self.load_one(lane)
            await self.lanes.load_kept(lane, self.tasks)

    def announced(self, lane: Lane = LANE) -> dict[str, Lane]:
        """The artifacts that gateways are told of, each with its lane."""
        return {known.name: known.lane for known in self.directory.find(lane.model).artifacts}


@pytest.fixture
async def serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    fix_memory(monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        made = Serving(str(folder), tasks)
        with unloading_at_the_end(made):
            yield made


def live(serving: Serving, lane: Lane = LANE) -> None:
    serving.directory.make_live(lane)


async def test_nothing_is_kept_unless_it_is_asked_for(serving: Serving) -> None:
    serving.keep()
    await serving.load(LANE)
    live(serving)
    assert serving.announced() == {"onnx": LANE}
    assert [*serving.lanes.row_s()] == [LANE]


async def test_kept_artifacts_take_requests_and_are_announced(
    serving: Serving, manifest: Manifest
) -> None:
    serving.keep("exact", "onnx-2")
    await serving.load(LANE)
    live(serving)
    exact, half = (LANE._replace(artifact=name) for name in ("onnx-1", "onnx-2"))
    assert serving.announced() == {"onnx": LANE, "onnx-1": exact, "onnx-2": half}
    for lane in (LANE, exact, half):
        assert await serving.serves(lane)
    assert not await serving.serves(LANE._replace(artifact="onnx-3"))
    assert serving.lanes.loaded() == [LANE]
    files = sum(artifact.file.size_bytes for artifact in manifest.artifacts[:3])
    assert serving.gauge("model_memory_bytes", LANE) == files
    assert serving.gauge("queue_depth", LANE) == 0
    first = serving.directory.find("m").artifacts[0]
    assert (first.precision, first.accuracy_loss) == ("int8", 0)
    assert 0 < first.row_ms < 1000
    await serving.lanes.load_kept(LANE, serving.tasks)  # there is nothing left to load
    assert len(serving.announced()) == 3


async def test_a_version_leaves_with_what_was_kept_of_it(serving: Serving) -> None:
    serving.keep("exact")
    await serving.load(LANE)
    further = LANE._replace(artifact="onnx-1")
    serving.lanes.unload(LANE)
    assert not await serving.serves(further)
    assert not await serving.serves(LANE)
    assert serving.lanes.loaded() == []


async def test_what_cannot_be_kept_does_not_touch_the_version(
    serving: Serving, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def load(store: ModelStore, version: Manifest, options: LoadOptions) -> object:
        if options.artifact:
            tried.append(options.artifact)
            raise LoadError("broken here")
        return load_version(store, version, options)

    monkeypatch.setattr(lanes_module, "load_version", load)
    serving.keep("exact")
    await serving.load(LANE)
    live(serving)
    assert tried == ["onnx-1", "onnx-3"]  # the next best one is tried
    assert serving.announced() == {"onnx": LANE}
    assert await serving.serves(LANE)
    await serving.lanes.load_kept(LANE, serving.tasks)
    assert len(tried) == 2


def unloading_during_a_load(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> list[Backend]:
    """Unloads the version while another artifact of it is opened; returns what is opened then."""
    loop, opened = asyncio.get_running_loop(), list[Backend]()

    def load(store: ModelStore, version: Manifest, options: LoadOptions) -> LoadedVersion:
        loaded = load_version(store, version, options)
        if options.artifact:
            opened.extend(loaded.backends)
            asyncio.run_coroutine_threadsafe(unload(), loop).result()
        return loaded

    async def unload() -> None:
        serving.lanes.unload(LANE)

    monkeypatch.setattr(lanes_module, "load_version", load)
    return opened


async def test_a_version_that_leaves_meanwhile_is_left_alone(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = unloading_during_a_load(serving, monkeypatch)
    serving.keep("exact")
    await serving.load(LANE)
    assert len(opened) == 1
    assert not await serving.serves(LANE._replace(artifact="onnx-1"))
    assert [*serving.lanes.row_s()] == []


async def test_what_is_kept_pushes_nothing_out(
    serving: Serving, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def load(store: ModelStore, version: Manifest, options: LoadOptions) -> LoadedVersion:
        opened.append(options.artifact)
        return load_version(store, version, options)

    monkeypatch.setattr(lanes_module, "load_version", load)
    sizes = [artifact.file.size_bytes for artifact in manifest.artifacts]
    room = BASE_BYTES + sizes[3] + sizes[0] + sizes[0] // 2
    serving.keep("exact", max_memory_bytes=room, unload_idle=True)
    await serving.load(OTHER, LANE)
    assert opened == ["", ""]  # what plainly does not fit is not even opened
    assert await serving.serves(OTHER)
    assert await serving.serves(LANE)
    assert not await serving.serves(LANE._replace(artifact="onnx-1"))


async def test_a_version_that_is_pushed_out_takes_along_what_was_kept_of_it(
    serving: Serving, manifest: Manifest
) -> None:
    sizes = [artifact.file.size_bytes for artifact in manifest.artifacts]
    assert sizes[3] > sizes[0]  # so that it is not enough to close the default one
    room = BASE_BYTES + sum(sizes[:2])
    serving.keep("exact", max_memory_bytes=room, unload_idle=True)
    await serving.load(LANE)
    further = LANE._replace(artifact="onnx-1")
    assert await serving.serves(further)
    await serving.load(OTHER)
    assert await serving.serves(OTHER)
    assert not await serving.serves(LANE)
    assert not await serving.serves(further)
    live(serving)
    left = serving.directory.find("m")
    assert (left.lane, left.state) == (LANE, "unloaded")
    assert serving.announced() == {}


async def test_a_version_goes_over_to_another_artifact_while_it_serves(
    serving: Serving, manifest: Manifest
) -> None:
    serving.keep()
    await serving.load(LANE)
    live(serving)
    before = asyncio.ensure_future(serving.serves(LANE))
    assert await serving.lanes.exchange(LANE, "onnx-1", {"onnx-1": 0.5}, serving.tasks)
    assert await before
    assert await serving.serves(LANE)
    served = serving.directory.find("m")
    assert (served.state, served.artifact) == ("ready", "onnx-1")
    assert serving.announced() == {"onnx-1": LANE}
    size = manifest.artifacts[1].file.size_bytes
    assert serving.gauge("model_memory_bytes", LANE) == size
    assert not await serving.lanes.exchange(LANE, "onnx-1", {}, serving.tasks)


async def test_a_backend_that_is_replaced_is_freed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference to it would keep the memory of each replaced artifact."""
    opened: list[weakref.ref[Backend]] = []

    def load(store: ModelStore, version: Manifest, options: LoadOptions) -> LoadedVersion:
        loaded = load_version(store, version, options)
        opened.extend(map(weakref.ref, loaded.backends))
        return loaded

    monkeypatch.setattr(lanes_module, "load_version", load)
    serving.keep()
    await serving.load(LANE)
    assert await serving.serves(LANE)
    assert await serving.lanes.exchange(LANE, "onnx-1", {"onnx-1": 0.5}, serving.tasks)
    assert await serving.serves(LANE)
    replaced, serves = opened
    await until(lambda: gc.collect() >= 0 and replaced() is None)  # its thread ends
    assert serves() is not None


async def test_what_is_kept_follows_a_version_that_goes_over(serving: Serving) -> None:
    serving.keep("fast", "exact")
    await serving.load(LANE)
    live(serving)
    assert serving.announced() == {"onnx": LANE, "onnx-1": LANE._replace(artifact="onnx-1")}
    figures = {"onnx": 5.0, "onnx-1": 1.0, "onnx-2": 4.0, "onnx-3": 3.0}
    assert await serving.lanes.exchange(LANE, "onnx-1", figures, serving.tasks)
    assert serving.announced() == {"onnx-1": LANE}
    assert await serving.serves(LANE)
    assert not await serving.serves(LANE._replace(artifact="onnx-1"))


async def test_an_artifact_that_cannot_be_loaded_leaves_the_version_as_it_is(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(store: ModelStore, version: Manifest, options: LoadOptions) -> LoadedVersion:
        if options.artifact:
            raise LoadError("broken here")
        return load_version(store, version, options)

    monkeypatch.setattr(lanes_module, "load_version", load)
    serving.keep()
    await serving.load(LANE)
    live(serving)
    assert not await serving.lanes.exchange(LANE, "onnx-1", {"onnx-1": 1.0}, serving.tasks)
    assert serving.announced() == {"onnx": LANE}
    assert await serving.serves(LANE)


async def test_a_version_does_not_go_over_to_what_does_not_fit_beside_it(
    serving: Serving, manifest: Manifest
) -> None:
    sizes = [artifact.file.size_bytes for artifact in manifest.artifacts]
    serving.keep(max_memory_bytes=BASE_BYTES + sizes[0] + sizes[1] - 1)
    await serving.load(LANE)
    live(serving)
    assert not await serving.lanes.exchange(LANE, "onnx-1", {"onnx-1": 1.0}, serving.tasks)
    assert serving.announced() == {"onnx": LANE}
    assert await serving.serves(LANE)


async def test_a_version_that_leaves_meanwhile_does_not_go_over(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = unloading_during_a_load(serving, monkeypatch)
    serving.keep()
    await serving.load(LANE)
    assert not await serving.lanes.exchange(LANE, "onnx-1", {"onnx-1": 1.0}, serving.tasks)
    assert len(opened) == 1
    assert not await serving.serves(LANE)
