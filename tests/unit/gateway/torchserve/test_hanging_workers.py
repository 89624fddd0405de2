"""Workers of one version that hang or fail while they start, and other calls for their model."""

import asyncio
from pathlib import Path
from textwrap import dedent

import pytest

from model_store.archives.server_properties import ServerProperties
from services.gateway.torchserve.register_request import RegisterRequest
from services.inference.loading import load_turns
from tests.fixtures.archive_registries import VERSION, Running
from tests.fixtures.redis_servers import until


async def test_version_loads_while_the_load_of_another_one_of_its_model_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.5)
    running = Running(tmp_path, ServerProperties(), 0.2, 600)
    stop, passed = asyncio.Event(), asyncio.Event()
    reconciling = asyncio.create_task(running.reconciler.run(stop, passed.set))
    await passed.wait()
    source, reached = running.gate()
    await begin(running, "1.0", source)
    open_gate = await asyncio.to_thread(reached)
    try:
        assert await running.register("2") == "2"
        assert (await running.ask("2")).startswith("2 of ")
        states = [served.state for served in running.directory.of_model("m")]
        assert states == ["loading", "ready"]
    finally:
        open_gate()
    await until(lambda: running.directory.of_model("m")[0].state == "ready", 60)
    stop.set()
    await reconciling


@pytest.mark.parametrize("hangs", [False, True])
async def test_version_that_failed_is_tried_again_by_the_call_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """The reason of an earlier failure answers no later call, even if another version hangs."""
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.5)
    running = Running(tmp_path, ServerProperties(), 0.2, 600)
    stop, passed = asyncio.Event(), asyncio.Event()
    reconciling = asyncio.create_task(running.reconciler.run(stop, passed.set))
    await passed.wait()
    open_gate = None
    if hangs:
        source, reached = running.gate()
        await begin(running, "1.0", source)
        open_gate = await asyncio.to_thread(reached)
    weights = tmp_path / "weights"
    await begin(running, "2", f"open({str(weights)!r}).read()\n")

    def states() -> list[str]:
        return [served.state for served in running.directory.of_model("m")]

    await until(lambda: states()[-1:] == ["failed"], 60)
    weights.touch()
    try:
        assert await running.registry.scale("m", "2", 1) == "2"
        assert states() == ["loading"] * hangs + ["ready"]
    finally:
        if open_gate is not None:
            open_gate()
    await until(lambda: set(states()) == {"ready"}, 60)
    stop.set()
    await reconciling


async def begin(running: Running, version: str, source: str) -> None:
    """Registers an archive whose handler begins with some source, without waiting."""
    path = running.archive(version, handler=source + dedent(VERSION % version))
    asked = RegisterRequest(archive=path, url="m.mar", initial_workers=1, startup_timeout_s=600)
    await running.registry.register(asked, waits=False)
