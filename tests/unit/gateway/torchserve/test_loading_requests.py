"""Requests wait while the first workers of their version start, and for nothing else."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flambeau.protocol.tensors import object_array
from model_store.archives.handler_calls import (
    RESPONSE,
    HandlerAnswer,
    HandlerRequest,
    encode_answer,
    signature_of,
)
from model_store.archives.registrations import alias_of
from model_store.archives.server_properties import ServerProperties
from model_store.store import ModelStore
from services.gateway.admission import Admission
from services.gateway.request_accounting import RequestAccounting
from services.gateway.torchserve.archive_registry import ArchiveRegistry
from services.gateway.torchserve.predictions import Predictions
from services.gateway.torchserve.refusals import RefusedError
from services.gateway.torchserve.register_request import RegisterRequest
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import InferReply, Lane, ServedVersion
from services.telemetry.metrics import Metrics
from tests.fixtures.model_archives import write_archive

WITHIN_S = 20


class Answering:
    """An intake that answers at once."""

    waiting = 0

    def accept(self, entry: Entry) -> None:
        outputs = {RESPONSE: object_array([encode_answer(HandlerAnswer(status=200))])}
        entry.finish(
            InferReply(
                lane=entry.request.lane, outputs=outputs, datatypes={RESPONSE: "BYTES"},
                batch_rows=1, queue_s=0.0, execution_s=0.0,
            )
        )  # fmt: skip

    def discard(self, entry: Entry, reason: str) -> None:
        raise AssertionError((entry, reason))


class Place:
    """Predictions of one archive, `m`, whose model process is the test."""

    def __init__(self, folder: Path, config: str = "", **asked: Any) -> None:
        self.directory, self.queue, metrics = Directory(), MemoryQueue(9), Metrics("test")
        admission = Admission(
            self.directory, self.queue, metrics, max_in_flight_requests=9, request_timeout_s=9
        )
        accounting = RequestAccounting(metrics, self.directory, access_log=False)
        store = ModelStore(str(folder / "store"))
        registry = ArchiveRegistry(store, folder, self.directory, _never, ServerProperties())
        how: dict[str, Any] = {}
        if config:
            how = {"files": {"c.yaml": config}, "configFile": "c.yaml"}
        path = write_archive(folder, **how)
        asked.setdefault("initial_workers", 1)
        registry.add(RegisterRequest(archive=path, url="m.mar", **asked))
        (model,) = registry.latest().models.values()
        self.lane = Lane("m", model.versions["1.0"].number or 0)
        self.predictions = Predictions("torchserve", "200", admission, accounting, registry.latest)

    def announce(self, state: Any) -> None:
        """Has the version in a state; a ready one answers."""
        signature = signature_of(1) if state == "ready" else None
        self.directory.announce(ServedVersion(lane=self.lane, state=state, signature=signature))
        if state == "ready":
            self.queue.open(self.lane, Answering())
            number = self.lane.version
            self.directory.set_aliases("m", {"production": number, alias_of("1.0"): number})
            self.directory.make_live(self.lane)

    async def ask(self, version: str = "") -> int:
        """Returns the status of an answer, or of a refusal."""
        try:
            async with asyncio.timeout(WITHIN_S):
                return (await self.predictions.ask("m", version, HandlerRequest())).status
        except RefusedError as error:
            return error.refusal.code

    async def waiting(self, version: str = "") -> "asyncio.Task[int]":
        """Returns a request that waits."""
        task = asyncio.create_task(self.ask(version))
        await asyncio.sleep(0)
        assert not task.done()
        return task


async def _never(*_: Any) -> None:
    raise AssertionError("nothing is changed")


Make = Callable[..., Place]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda *config, **asked: Place(tmp_path, *config, **asked)


@pytest.mark.parametrize("before", [None, "loading", "unloaded"])
@pytest.mark.parametrize("version", ["", "1.0"])
async def test_requests_are_answered_once_the_workers_have_started(
    make: Make, before: Any, version: str
) -> None:
    place = make()
    if before is not None:
        place.announce(before)
    tasks = [await place.waiting(version) for _ in range(20)]
    place.announce("loading")
    place.announce("ready")
    assert await asyncio.gather(*tasks) == [200] * 20
    assert await place.ask(version) == 200


async def test_requests_are_refused_once_the_workers_have_failed(make: Make) -> None:
    place = make()
    tasks = [await place.waiting() for _ in range(20)]
    place.announce("failed")
    assert await asyncio.gather(*tasks) == [503] * 20
    assert await place.ask() == 503, "nothing loads"


async def test_a_version_without_workers_refuses_at_once(make: Make) -> None:
    assert await make(initial_workers=0).ask() == 503


async def test_as_many_wait_as_the_job_queue_has_places(make: Make) -> None:
    place = make("jobQueueSize: 2")
    first, second = await place.waiting(), await place.waiting()
    assert await place.ask() == 503
    first.cancel()
    await asyncio.wait({first})
    third = await place.waiting()
    place.announce("ready")
    assert [await second, await third] == [200, 200]


@pytest.mark.parametrize(
    ("config", "code"), [("responseTimeout: 1", 503), ("clientTimeoutInMills: 100", 408)]
)
async def test_a_wait_ends_with_the_time_for_an_answer(make: Make, config: str, code: int) -> None:
    place = make(config)
    assert await place.ask() == code
    assert await (await place.waiting("1.0")) == code


async def test_a_server_that_leaves_refuses_what_waits(make: Make) -> None:
    place = make()
    task = await place.waiting()
    place.predictions.leave()
    assert await task == 503
    assert await place.ask() == 503
