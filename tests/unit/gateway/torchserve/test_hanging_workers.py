"""Workers of one version that hang while they start delay no other version of their model."""

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
    hanging = running.archive("1.0", handler=source + dedent(VERSION % "1.0"))
    request = RegisterRequest(
        archive=hanging, url="m.mar", initial_workers=1, startup_timeout_s=600
    )
    await running.registry.register(request, waits=False)
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
