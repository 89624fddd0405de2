"""Models without room for all: they make room for each other, and load again once requested."""

import asyncio
import contextlib
import dataclasses
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.errors import ModelReturningError
from services.inference.backends.device_memory import DeviceMemory
from services.inference.loading import lanes
from services.inference.loading.loader import LoadedVersion, LoadOptions, load_version
from services.low_priority_thread import NICENESS, STEPS_BELOW_LOOP
from services.queueing.records import InferRequest, Lane
from tests.fixtures.fake_backends import DoublingBackend
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import until
from tests.fixtures.running_reconciler import Running, running_reconciler


class HeldBackend(DoublingBackend):
    """Closes when the test says so, and has memory of its own."""

    def __init__(self, own_bytes: int) -> None:
        super().__init__()
        self.own_bytes = own_bytes
        self.closing, self.may_close = threading.Event(), threading.Event()
        self.may_close.set()

    def process_bytes(self) -> int:
        return self.own_bytes

    def close(self) -> None:
        self.closing.set()
        assert self.may_close.wait(60)
        super().close()


class Evicting:
    """A server of the models `a` and `b`, and what it loads."""

    def __init__(self, running: Running, loads: "Loads", unit_bytes: int) -> None:
        self.running, self.loads, self.unit_bytes = running, loads, unit_bytes

    def state(self, model: str) -> str:
        """Returns the state of the only version of a model; empty while it is unknown."""
        return self.running.states(model).get(1, "")

    def away_and_ready(self) -> tuple[str, str]:
        """Returns the model that has made room, and the other one."""
        assert {self.state("a"), self.state("b")} == {"ready", "unloaded"}
        return ("a", "b") if self.state("b") == "ready" else ("b", "a")

    def request(self, model: str) -> None:
        """Requests a model that has made room."""
        with pytest.raises(ModelReturningError, match="being loaded again"):
            self.running.directory.resolve(model)


class Loads:
    """Loads as a test wants them; `niceness` has that of each, `backends` the newest ones.

    `own_bytes` has the memory of models, if more than their files.
    """

    def __init__(self) -> None:
        self.are_real = True
        self.niceness: list[int] = []
        self.backends: dict[str, HeldBackend] = {}
        self.own_bytes: dict[str, int] = {}

    def load(self, store: ModelStore, manifest: Manifest, options: LoadOptions) -> LoadedVersion:
        self.niceness.append(options.niceness)
        loaded = load_version(store, manifest, options)
        if self.are_real:
            return loaded
        for opened in loaded.backends:
            opened.close()
        self.backends[manifest.model] = HeldBackend(self.own_bytes.get(manifest.model, 0))
        return dataclasses.replace(loaded, backends=[self.backends[manifest.model]])


Start = Callable[..., Awaitable[Evicting]]


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    sizes = [publish(str(tmp_path), m, linear(1)).artifacts[0].file.size_bytes for m in ("a", "b")]
    memory = DeviceMemory(used_bytes=1000, total_bytes=10**12)  # it never moves, so files count
    monkeypatch.setattr(lanes, "device_memory_bytes", lambda device: memory)
    loads = Loads()
    monkeypatch.setattr(lanes, "load_version", loads.load)
    async with contextlib.AsyncExitStack() as stack:

        async def begin(units: int = 1, *, are_real: bool = True, **policy: object) -> Evicting:
            loads.are_real = are_real
            policy |= {"max_memory_bytes": 1000 + units * max(sizes), "unload_idle": True}
            running = await stack.enter_async_context(running_reconciler(tmp_path, **policy))
            return Evicting(running, loads, max(sizes))

        yield begin


async def test_two_models_with_room_for_one_take_turns_as_they_are_asked_for(
    tmp_path: Path, start: Start
) -> None:
    server = await start()
    for _ in range(2):
        away, ready = server.away_and_ready()
        server.request(away)
        await server.running.until(lambda away=away: server.state(away) == "ready")  # type: ignore[misc]
        assert server.state(ready) == "unloaded"
        assert server.running.directory.resolve(away)[0].lane.version == 1
    # At the lowest priority they would not come while other processes keep the cores busy.
    assert server.loads.niceness == [0, 0, STEPS_BELOW_LOOP, STEPS_BELOW_LOOP]
    publish(str(tmp_path), "c", linear(1))
    await server.running.until(lambda: server.state("c") == "ready")
    assert server.loads.niceness[-1] == NICENESS


async def test_version_without_room_is_tried_again_soon_however_rarely_the_store_is_read(
    start: Start,
) -> None:
    server = await start(are_real=False, poll_interval_s=60)
    away, busy = server.away_and_ready()
    backend = server.loads.backends[busy]
    backend.gate.clear()
    request = InferRequest(
        request_id="r", lane=Lane(busy, 1), inputs={"x": np.ones((1, 4), np.float32)}, rows=1,
        deadline=math.inf,
    )  # fmt: skip
    server.running.queue.submit(request, lambda outcome: None)
    await asyncio.to_thread(backend.started.wait)
    server.request(away)
    directory = server.running.directory
    await server.running.until(lambda: "does not fit" in directory.of_model(away)[0].reason)
    backend.gate.set()
    await server.running.until(lambda: server.state(away) == "ready")


async def test_version_that_is_requested_while_it_drains_loads_at_the_end_of_the_drain(
    tmp_path: Path, start: Start
) -> None:
    server = await start(2, are_real=False, poll_interval_s=60)
    backends = server.loads.backends
    for model in "ab":
        backends[model].may_close.clear()
    publish(str(tmp_path), "c", linear(1))
    server.loads.own_bytes["c"] = 2 * server.unit_bytes
    server.running.control.missed(Lane("c", 1), False)  # a pass begins
    await until(lambda: any(backend.closing.is_set() for backend in backends.values()))
    first, leaving = sorted("ab", key=lambda model: not backends[model].closing.is_set())
    backends[first].may_close.set()
    # Loaded, `c` turns out to need the room of both, and waits for no second one to close.
    await server.running.until(lambda: server.state("c") == "ready")
    server.running.passed.clear()
    server.request(leaving)
    await server.running.passed.wait()
    assert server.state(leaving) == "unloaded"
    backends[leaving].may_close.set()
    await until(lambda: server.state(leaving) == "ready")
