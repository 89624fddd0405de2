"""Model files with arbitrary content: reported by name, without effect on other models."""

import asyncio
import contextlib
import functools
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from model_store.pointers import Pointers
from model_store.store import ModelStore
from services.inference.loading.loader import LoadOptions
from services.inference.loading.policy import LanePolicy, ServingPolicy
from services.inference.loading.reconciler import MAX_GENERATIONS_TRIED, Reconciler
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane
from services.telemetry.metrics import Metrics
from tests.fixtures.hostile_files import change, change_value, seal
from tests.fixtures.onnx_models import linear, publish

POLICY = ServingPolicy(
    newest_versions=1,
    poll_interval_s=0.01,
    retry_failed_s=0,
    lane=LanePolicy(load=LoadOptions(artifact="onnx")),
)
REPLACEMENTS = {
    "nested": b"[" * 200_000,
    "nested objects": b'{"a":' * 40_000,
    "many": b"[]," * 300_000,
    "digits": b"9" * 100_000,
    "not UTF-8": bytes(range(256)) * 9,
    "surrogate": b'{"model": "\\ud800"}',
    "number": b"1e999",
    "nothing": b"",
    "null": b"null",
    "header": (2**63).to_bytes(8, "little") + b"{}",
}
FUZZ_ROUNDS = int(os.environ.get("FLAMBEAU_FUZZ_ROUNDS", "40"))


class Watched:
    """A reconciler on a store with the model `healthy`, and its reports on `hostile`."""

    def __init__(self, folder: Path, log: pytest.LogCaptureFixture) -> None:
        self.folder, self._log = folder, log
        self.directory, self.metrics = Directory(), Metrics("test")
        self._passed = asyncio.Event()
        self._reconciler = Reconciler(
            ModelStore(str(folder)), MemoryQueue(9), self.directory, self.metrics, POLICY
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs until the block ends; what ends the reconciler fails the test."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._reconciler.run(stop, self._passed.set))
        try:
            yield
            assert not task.done()
        finally:
            stop.set()
            await task

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for passes until something holds."""
        async with asyncio.timeout(60):
            while not holds():
                self._passed.clear()
                await self._passed.wait()

    def said(self, message: str) -> int:
        """Returns the number of log lines with this message."""
        return sum(record.getMessage() == message for record in self._log.records)

    def named(self) -> str:
        """Returns the error of `hostile`: the reason of its state, or else of a log line."""
        for served in self.directory.all_versions():
            if served.lane.model == "hostile" and served.state == "failed":
                return served.reason
        for record in self._log.records:
            if "hostile" in record.getMessage():
                return str(vars(record).get("reason", ""))
        return ""


@pytest.fixture
def watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Watched:
    publish(str(tmp_path), "healthy", linear(2))
    publish(str(tmp_path), "hostile", linear(2))
    ModelStore(str(tmp_path)).promote("hostile", 1)
    return Watched(tmp_path, caplog)


FILES = ["1/manifest.json", "1/golden.safetensors", "1/model.0.onnx", "pointers/00000001.json"]


@pytest.mark.parametrize("data", REPLACEMENTS.values(), ids=REPLACEMENTS)
@pytest.mark.parametrize("file", FILES)
async def test_a_replaced_file_is_named_and_the_other_model_serves(
    watched: Watched, file: str, data: bytes
) -> None:
    (watched.folder / "hostile" / file).write_bytes(data)
    async with watched.running():
        await watched.until(lambda: watched.directory.live_version("healthy") == 1)
        await watched.until(lambda: bool(watched.named()))
    assert file.rpartition("/")[2] in watched.named()


async def test_a_model_that_cannot_be_listed_is_named_and_the_other_one_serves(
    watched: Watched,
) -> None:
    manifest = watched.folder / "hostile/1/manifest.json"
    manifest.unlink()
    manifest.symlink_to(manifest)
    async with watched.running():
        await watched.until(lambda: watched.directory.live_version("healthy") == 1)
        await watched.until(lambda: bool(watched.named()))
    assert "hostile/1/manifest.json" in watched.named()


async def test_broken_generations_without_end_are_read_in_part_and_said_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2, 300):
        (watched.folder / f"hostile/pointers/{number:08d}.json").write_bytes(b"[" * 100)
    reads: list[int] = []
    read = ModelStore.pointers_at

    def counted(self: ModelStore, model: str, generation: int) -> Pointers:
        reads.append(generation)
        return read(self, model, generation)

    monkeypatch.setattr(ModelStore, "pointers_at", counted)
    async with watched.running():
        await watched.until(lambda: reads.count(299) > 2)
        assert watched.directory.live_version("healthy") == 1
    assert set(reads) == set(range(300 - MAX_GENERATIONS_TRIED, 300))
    assert watched.said("pointers of hostile are unreadable") == 1


@pytest.mark.parametrize("error", [RecursionError, MemoryError, OverflowError, SystemExit])
async def test_whatever_reading_a_model_raises_is_its_own(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    read = ModelStore.manifest

    def broken(self: ModelStore, model: str, version: int) -> object:
        if model == "hostile":
            raise error("of this model")
        return read(self, model, version)

    monkeypatch.setattr(ModelStore, "manifest", broken)
    async with watched.running():
        await watched.until(lambda: watched.directory.live_version("healthy") == 1)
        await watched.until(lambda: bool(watched.named()))
        assert "of this model" in watched.named()
        monkeypatch.setattr(ModelStore, "manifest", read)
        await watched.until(lambda: watched.directory.live_version("hostile") == 1)


async def test_files_changed_at_random_end_nothing(watched: Watched) -> None:
    """Each round changes one file of a version whose digests are made to agree again."""
    async with watched.running():
        await watched.until(lambda: watched.directory.live_version("healthy") == 1)
        for seed in range(FUZZ_ROUNDS):
            chance = random.Random(seed)
            number = publish(str(watched.folder), "hostile", linear(2)).version
            _change(watched.folder / "hostile" / str(number), chance)
            generation = len(list((watched.folder / "hostile/pointers").iterdir())) + 1
            (watched.folder / "hostile/pointers" / f"{generation:08d}.json").write_bytes(
                json.dumps({
                    "generation": generation, "aliases": {"production": number}, "who": "",
                    "when": "2026-01-01T00:00:00Z", "why": "",
                }).encode()
            )  # fmt: skip
            await watched.until(functools.partial(_is_settled, watched.directory, number))
            assert watched.directory.live_version("healthy") == 1


def _is_settled(directory: Directory, number: int) -> bool:
    return any(
        served.lane == Lane("hostile", number) and served.state in ("failed", "ready")
        for served in directory.all_versions()
    )


def _change(folder: Path, chance: random.Random) -> None:
    """Changes some bytes of a file, and what the manifest says of it."""
    file = chance.choice(["manifest.json", "golden.safetensors", "model.0.onnx"])
    changes = [change, change_value] if file == "manifest.json" else [change]
    data = chance.choice(changes)((folder / file).read_bytes(), chance)
    (folder / file).write_bytes(data)
    if file != "manifest.json":
        seal(folder, file)
