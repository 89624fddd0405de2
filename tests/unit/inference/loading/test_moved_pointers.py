"""Pointers that move while versions of their model load: what is withdrawn answers no more."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from model_store.manifest import FileEntry, Manifest
from model_store.store import ModelStore
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.running_reconciler import running_reconciler


async def test_a_version_that_loses_its_aliases_while_it_loads_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller whose act withdrew it has been answered before the load ends."""
    publish(str(tmp_path), "other", linear(1))
    async with running_reconciler(tmp_path, newest_versions=0) as running:
        store, directory = running.store, running.directory
        may_read, read = threading.Event(), ModelStore.read_file

        def held(self: ModelStore, manifest: Manifest, entry: FileEntry, *rest: Any) -> bytes:
            if (manifest.model, manifest.version) == ("m", 1):
                assert may_read.wait(60)
            return read(self, manifest, entry, *rest)

        monkeypatch.setattr(ModelStore, "read_file", held)
        publish(str(tmp_path), "m", linear(1))
        store.set_aliases("m", {"v-1.0": 1, "production": 1})
        await running.until(lambda: running.states() == {1: "loading"})
        publish(str(tmp_path), "m", linear(2))
        store.set_aliases("m", {})
        await running.control.act("unload", "m")
        answering: set[int | None] = set()

        def note() -> None:
            answering.update({directory.live_version("m"), *directory.aliases("m").values()})

        directory.changed = note
        store.set_aliases("m", {"v-1.0": 2, "production": 2})
        await running.control.act("unload", "m")
        may_read.set()
        await running.control.act("load", "m")
        await running.until(lambda: running.states() == {2: "ready"})
        assert directory.resolve("m", "v-1.0")[0].lane.version == 2
        assert answering <= {None, 2}


async def test_a_version_is_withdrawn_while_another_one_of_its_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(tmp_path), "m", linear(1))
    publish(str(tmp_path), "m", linear(2))
    store = ModelStore(str(tmp_path))
    store.set_aliases("m", {"v-1.0": 1, "production": 1})
    async with running_reconciler(tmp_path, newest_versions=0) as running:
        may_read, read = threading.Event(), ModelStore.read_file

        def held(self: ModelStore, manifest: Manifest, entry: FileEntry, *rest: Any) -> bytes:
            if manifest.version == 2:
                assert may_read.wait(60)
            return read(self, manifest, entry, *rest)

        monkeypatch.setattr(ModelStore, "read_file", held)
        store.set_aliases("m", {"v-1.0": 1, "v-2.0": 2, "production": 1})
        await running.until(lambda: running.states() == {1: "ready", 2: "loading"})
        store.set_aliases("m", {"v-2.0": 2, "production": 2})
        await running.control.act("unload", "m")
        try:
            assert running.states() == {2: "loading"}
        finally:
            may_read.set()
        await running.until(lambda: running.states() == {2: "ready"})
        await running.until(lambda: running.directory.live_version("m") == 2)


async def test_a_model_is_loaded_while_it_still_drains(tmp_path: Path) -> None:
    """It answers its requests before its backends close; a load comes behind that."""
    publish(str(tmp_path), "m", linear(1))
    async with running_reconciler(tmp_path, control="explicit", poll_interval_s=60) as running:
        for _ in range(20):
            await running.control.act("load", "m")
            assert running.states() == {1: "ready"}
            await running.control.act("unload", "m")


async def test_a_pass_starts_one_task_for_each_model_however_many_versions_are_served(
    tmp_path: Path,
) -> None:
    for scale in range(1, 9):
        publish(str(tmp_path), "m", linear(scale))
    async with running_reconciler(tmp_path, newest_versions=8) as running:
        await running.until(lambda: [*running.states().values()] == ["ready"] * 8)
        await running.control.act("unload", "other")  # the pass that has loaded them is over
        started: list[str] = []

        def count(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
            started.append(work.__qualname__)
            return asyncio.Task(work, loop=loop, **how)

        asyncio.get_running_loop().set_task_factory(count)
        for _ in range(3):
            running.passed.clear()
            await running.passed.wait()
        asyncio.get_running_loop().set_task_factory(None)
        assert 2 <= started.count("Reconciler._guarded") <= 4
        assert not {name for name in started if "load" in name.lower()} - {"KeptLoads.load_all"}
        assert len(started) < 3 * 8
