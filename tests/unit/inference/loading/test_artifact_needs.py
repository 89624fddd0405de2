"""Artifacts with large resource needs are tried in isolation before they load elsewhere."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_store.errors import ArchiveError
from model_store.safety.archive_sizes import check_archive
from services.inference.loading.artifact_needs import ArtifactNeeds
from services.inference.loading.loader import LoadError, LoadOptions
from services.inference.loading.policy import LanePolicy, ServingPolicy
from services.low_priority_thread import STEPS_BELOW_LOOP
from services.queueing.records import Lane
from tests.fixtures import hostile_artifacts as hostile
from tests.fixtures.loaded_lanes import LoadedLanes, unloading_at_the_end
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.peak_memory import forget_peak, peak_bytes
from tests.fixtures.worker_processes import children_of, wait_until_ended

MIB = 2**20
ROWS = {"x": np.ones((8, 4), np.float32)}
ANSWERS = {"y": np.ones((8, 4), np.float32)}


@pytest.fixture
def needs(tmp_path: Path) -> Iterator[ArtifactNeeds]:
    made = ArtifactNeeds(512 * MIB, 60.0, str(tmp_path / "needs.json"))
    with contextlib.closing(made):
        yield made


def publish_one(folder: Path, model: str, *artifacts: bytes) -> None:
    publish(str(folder / "store"), model, *artifacts, golden=ROWS, golden_outputs=ANSWERS)


class Trying(LoadedLanes):
    """Lanes whose artifacts are tried first."""

    def __init__(
        self, folder: Path, tasks: asyncio.TaskGroup, needs: ArtifactNeeds, isolate: bool = False
    ) -> None:
        super().__init__(str(folder / "store"), tasks)
        load = LoadOptions(needs=needs, isolate=isolate)
        self.begin(
            ServingPolicy(
                newest_versions=1, poll_interval_s=1, retry_failed_s=1, lane=LanePolicy(load=load)
            )
        )

    async def load(self, model: str) -> str:
        """Loads a model; returns the name of its artifact, or why there is none."""
        try:
            await self.load_one(Lane(model, 1))
        except LoadError as error:
            return str(error)
        assert await self.serves(Lane(model, 1))
        return self.directory.find(model, "1").artifact


async def load_all(
    folder: Path, needs: ArtifactNeeds, *models: str, isolate: bool = False
) -> dict[str, str]:
    """Loads models side by side; what became of each."""
    async with asyncio.TaskGroup() as tasks:
        lanes = Trying(folder, tasks, needs, isolate)
        with unloading_at_the_end(lanes):
            found = await asyncio.gather(*map(lanes.load, models))
    return dict(zip(models, found, strict=True))


def known(folder: Path) -> str:
    return (folder / "needs.json").read_text()


async def test_what_an_artifact_takes_is_found_once_and_remembered(
    tmp_path: Path, needs: ArtifactNeeds, caplog: pytest.LogCaptureFixture
) -> None:
    publish_one(tmp_path, "m", linear())
    caplog.set_level("INFO")
    for _ in range(2):
        assert await load_all(tmp_path, needs, "m") == {"m": "onnx"}
    anew = ArtifactNeeds(512 * MIB, 60.0, str(tmp_path / "needs.json"))
    assert await load_all(tmp_path, anew, "m") == {"m": "onnx"}
    assert [record.message for record in caplog.records].count("artifact tried") == 1


@pytest.mark.parametrize("bomb", [hostile.memory_bomb(), hostile.batch_bomb()], ids=["open", "run"])
async def test_a_memory_bomb_is_refused_with_the_figures_and_the_next_artifact_serves(
    tmp_path: Path, needs: ArtifactNeeds, bomb: bytes
) -> None:
    publish_one(tmp_path, "bomb", bomb)
    publish_one(tmp_path, "both", bomb, linear())
    publish_one(tmp_path, "whole", linear())
    forget_peak()
    before = peak_bytes()
    found = await load_all(tmp_path, needs, "bomb", "both", "whole")
    assert (found["both"], found["whole"]) == ("onnx-1", "onnx")
    assert "running its largest batch takes more than 512 MiB" in found["bomb"]
    assert "it may have 512 MiB (max_model_memory_mib)" in found["bomb"]
    assert peak_bytes() - before < 512 * MIB


async def test_an_artifact_that_never_opens_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    publish_one(tmp_path, "endless", hostile.endless())
    publish_one(tmp_path, "whole", linear())
    ended: list[str] = []
    with contextlib.closing(ArtifactNeeds(512 * MIB, 3.0, "")) as needs:
        async with asyncio.TaskGroup() as tasks:
            lanes = Trying(tmp_path, tasks, needs)

            async def load(model: str) -> str:
                found = await lanes.load(model)
                ended.append(model)
                return found

            with unloading_at_the_end(lanes):
                reason, served = await asyncio.gather(load("endless"), load("whole"))
    assert ended == ["whole", "endless"]
    assert served == "onnx"
    assert "takes more than 3 s of CPU time (open_time_limit_s)" in reason


async def test_a_try_holds_up_no_start_on_a_busy_machine(
    tmp_path: Path, needs: ArtifactNeeds
) -> None:
    """The lowest priority got a thirtieth of a core: sixteen models took a minute to be ready."""
    publish_one(tmp_path, "m", linear())
    assert await load_all(tmp_path, needs, "m") == {"m": "onnx"}
    (host,) = probe_hosts()
    behind = os.getpriority(os.PRIO_PROCESS, host) - os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert 0 < behind <= STEPS_BELOW_LOOP


async def test_the_process_that_tries_artifacts_leaves_nothing_defunct_when_it_ends(
    tmp_path: Path, needs: ArtifactNeeds
) -> None:
    """The probe process also exits by itself when idle for a while; then a new one is started."""
    for model, layers in (("m", 0), ("n", 1)):
        publish_one(tmp_path, model, linear(layers=layers, width=8))
        assert await load_all(tmp_path, needs, model) == {model: "onnx"}
        (host,) = probe_hosts()
        os.kill(host, signal.SIGKILL)
        assert await asyncio.to_thread(wait_until_ended, host)
        for thread in threading.enumerate():
            if thread.name.startswith("end of "):
                await asyncio.to_thread(thread.join, 10)
        assert host not in children_of(os.getpid())


def probe_hosts() -> list[int]:
    """Children of this process that artifacts are tried in."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text().split():
            if b"probe_host" in Path("/proc", child, "cmdline").read_bytes():
                found.append(int(child))
    return found


async def test_a_refusal_is_remembered_until_the_limit_is_higher(
    tmp_path: Path, needs: ArtifactNeeds, caplog: pytest.LogCaptureFixture
) -> None:
    publish_one(tmp_path, "m", hostile.batch_bomb(2**19))  # 2 MiB a row, of which there are 64
    caplog.set_level("INFO")
    file = str(tmp_path / "needs.json")
    for limit_mib, outcome in ((64, "it may have 64 MiB"), (64, "64 MiB"), (1024, "onnx")):
        with contextlib.closing(ArtifactNeeds(limit_mib * MIB, 60.0, file)) as limited:
            assert outcome in (await load_all(tmp_path, limited, "m"))["m"]
    assert [record.message for record in caplog.records].count("artifact tried") == 2


async def test_an_artifact_that_is_broken_is_refused_in_its_runtimes_words(
    tmp_path: Path, needs: ArtifactNeeds
) -> None:
    publish_one(tmp_path, "m", linear())
    file = tmp_path / "store/m/1/model.0.onnx"
    file.write_bytes(file.read_bytes()[:-1])
    assert "sha256 differs from the manifest" in (await load_all(tmp_path, needs, "m"))["m"]


async def test_an_artifact_with_a_process_of_its_own_has_the_limit_there(
    tmp_path: Path, needs: ArtifactNeeds
) -> None:
    publish_one(tmp_path, "m", hostile.memory_bomb(), linear())
    assert await load_all(tmp_path, needs, "m", isolate=True) == {"m": "onnx-1"}


def test_small_files_may_have_a_share_and_large_ones_three_times_their_size(tmp_path: Path) -> None:
    manifest = publish(str(tmp_path), "m", linear())
    (artifact,) = manifest.artifacts
    with contextlib.closing(ArtifactNeeds(0, 60.0, "")) as needs:
        small = needs.allowed_bytes(artifact)
        large = artifact.file.model_copy(update={"size_bytes": 2**40})
        assert 0 < small <= 4 * 2**30
        assert needs.allowed_bytes(artifact.model_copy(update={"file": large})) == 3 * 2**40


def test_an_archive_that_inflates_to_far_more_than_it_is_is_not_opened() -> None:
    bomb = hostile.zip_bomb(2**28)
    with pytest.raises(ArchiveError, match=r"model.pt has [0-9,]+ bytes and inflates to 268,4"):
        check_archive(bomb, "model.pt")
    check_archive(hostile.zip_bomb(2**20), "model.pt")
    with pytest.raises(ArchiveError, match=r"model.pt is no zip archive"):
        check_archive(b"PK", "model.pt")
