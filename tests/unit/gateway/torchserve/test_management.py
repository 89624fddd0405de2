"""Management's documents, words and codes; workers start, or not, when the test says so."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flambeau.protocol.tensors import object_array
from model_store.archives.handler_calls import (
    REQUEST,
    RESPONSE,
    HandlerAnswer,
    decode_request,
    encode_answer,
    signature_of,
)
from model_store.archives.server_properties import ServerProperties
from model_store.store import ModelStore
from services.errors import BackendError, ServingError
from services.gateway.admission import Admission
from services.gateway.request_accounting import RequestAccounting
from services.gateway.torchserve import archive_registry
from services.gateway.torchserve.archive_registry import ArchiveRegistry
from services.gateway.torchserve.archive_source import ArchiveSource
from services.gateway.torchserve.management import ACCEPTED, Management, Registering
from services.gateway.torchserve.predictions import Predictions
from services.gateway.torchserve.refusals import RefusedError
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import InferReply, Lane, ServedVersion
from services.telemetry.metrics import Metrics
from tests.fixtures.model_archives import write_archive


class Describing:
    """An intake whose handler answers with the headers that it got."""

    waiting = 0

    def accept(self, entry: Entry) -> None:
        asked = decode_request(bytes(entry.request.inputs[REQUEST].item(0)))
        body = json.dumps({"describe": asked.headers.get("describe")}).encode()
        answer = encode_answer(HandlerAnswer(body=body))
        entry.finish(
            InferReply(
                lane=entry.request.lane, outputs={RESPONSE: object_array([answer])},
                datatypes={RESPONSE: "BYTES"}, batch_rows=1, queue_s=0.0, execution_s=0.0,
            )
        )  # fmt: skip

    def discard(self, entry: Entry, reason: str) -> None:
        raise AssertionError((entry, reason))


class Place:
    """Management of a server whose model process is the test."""

    def __init__(self, folder: Path, **properties: Any) -> None:
        (folder / "archives").mkdir()
        for name in ("m", "n", "o"):
            write_archive(folder / "archives", name=name)
        settings = ServerProperties(model_store=str(folder / "archives"), **properties)
        self.store, self.directory = ModelStore(str(folder / "store")), Directory()
        self.queue, metrics = MemoryQueue(9), Metrics("test")
        self.starts = True
        self.fault: ServingError | None = None
        self.is_leaving = False
        self.loaded = asyncio.Event()
        admission = Admission(
            self.directory, self.queue, metrics, max_in_flight_requests=9, request_timeout_s=9
        )
        accounting = RequestAccounting(metrics, self.directory, access_log=False)
        registry = ArchiveRegistry(self.store, folder, self.directory, self._act, settings)
        predictions = Predictions("torchserve", "200", admission, accounting, registry.latest)
        self.management = Management(
            registry, predictions, ArchiveSource(folder, settings), settings,
            lambda: self.is_leaving,
        )  # fmt: skip

    async def _act(self, act: str, model: str, _: bool) -> None:
        """Serves the versions that aliases name, or refuses them."""
        if self.fault is not None:
            raise self.fault
        if act == "load":
            self.loaded.set()
        pointers = self.store.pointers(model)
        wanted = set(pointers.aliases.values()) if pointers is not None else set()
        for served in self.directory.of_model(model):
            if served.lane.version not in wanted:
                self.directory.withdraw(served.lane)
        for number in wanted:
            lane = Lane(model, number)
            if self.directory.served_lane(model, str(number)) is None and self.starts:
                served = ServedVersion(lane=lane, state="ready", signature=signature_of(1))
                self.directory.announce(served)
                self.queue.open(lane, Describing())
        if pointers is not None and self.starts:
            aliases = dict(pointers.aliases)
            self.directory.set_aliases(model, aliases)
            if "production" in aliases:
                self.directory.make_live(Lane(model, aliases["production"]))
        if act == "load" and not self.starts:
            raise ServingError("no memory")

    async def register(self, url: str = "m.mar", **asked: Any) -> tuple[int, Any]:
        asked.setdefault("is_synchronous", True)
        return tuple(await self.management.register(Registering(url=url, **asked)))


Make = Callable[..., Place]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **properties: Place(tmp_path, **properties)


async def refused(work: Any) -> tuple[int, str, str]:
    """Returns code, type and message of a refusal."""
    with pytest.raises(RefusedError) as caught:
        await work
    return tuple(caught.value.refusal)  # type: ignore[return-value]


async def test_registrations_wait_or_do_not(make: Make) -> None:
    place = make()
    words = 'Model "m" Version: 1.0 registered with 2 initial workers'
    assert await place.register(initial_workers=2) == (200, {"status": words})
    accepted = await place.register("n.mar", initial_workers=1, is_synchronous=False)
    assert accepted == (202, {"status": ACCEPTED})
    listed = (await place.management.list()).document["models"]
    assert [one["modelName"] for one in listed] == ["m", "n"]
    usual = 'Model "o" Version: 1.0 registered with 0 initial workers.'
    assert (await place.register("o.mar"))[1]["status"].startswith(usual)


async def test_the_server_says_how_many_workers_are_usual(make: Make) -> None:
    place = make(default_workers_per_model=3)
    words = 'Model "m" Version: 1.0 registered with 3 initial workers'
    assert await place.register() == (200, {"status": words})


async def test_workers_that_do_not_start(make: Make) -> None:
    place = make()
    place.starts = False
    words = "Failed to start workers for model m version: 1.0"
    failed = await refused(place.register(initial_workers=1))
    assert failed == (500, "InternalServerException", words)
    assert (await place.management.list()).document == {"models": []}
    place.loaded.clear()
    await place.register(initial_workers=1, is_synchronous=False)
    await place.loaded.wait()  # it goes on without its caller
    (described,) = (await place.management.describe("m")).document
    assert [one["status"] for one in described["workers"]] == ["UNLOADING"]
    scaling = place.management.scale("m", least=2, is_synchronous=True)
    words = "Failed to start workers for model m version: "
    assert (await refused(scaling))[2].startswith(words)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"url": None}, (400, "BadRequestException", "Parameter url is required.")),
        ({"runtime": "perl"}, (400, "BadRequestException", "Invalid RuntimeType value: perl")),
        (
            {"handler": "\ud800"},
            (
                400,
                "BadRequestException",
                "Parameter handler is '\\ud800', which is no text; send UTF-8.",
            ),
        ),
        ({"url": "x.mar"}, (404, "ModelNotFoundException", "Model not found at: x.mar")),
    ],
)
async def test_registrations_that_are_wrong(
    make: Make, asked: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    found = await refused(make().management.register(Registering(**{"url": "m.mar", **asked})))
    assert found == expected


async def test_an_archive_that_is_none_is_an_invalid_model(make: Make, tmp_path: Path) -> None:
    place = make()
    (tmp_path / "archives" / "bad.mar").write_bytes(b"no zip")
    code, kind, message = await refused(place.register("bad.mar"))
    assert (code, kind) == (400, "InvalidModelException")
    assert message.startswith("bad.mar begins with")


async def test_pages_of_the_list(make: Make) -> None:
    place = make()
    for name in ("o", "m", "n"):
        await place.register(f"{name}.mar")

    async def listed(*page: int) -> tuple[str | None, list[str]]:
        document = (await place.management.list(*page)).document
        return document.get("nextPageToken"), [one["modelName"] for one in document["models"]]

    assert await listed() == await listed(-1, -1) == await listed(101) == (None, ["m", "n", "o"])
    assert await listed(2) == ("2", ["m", "n"])
    assert await listed(2, 2) == (None, ["o"])
    assert await listed(3) == ("3", ["m", "n", "o"])
    assert await listed(0) == ("0", [])
    assert await listed(100, 2**31 - 1) == (None, [])


@pytest.mark.parametrize("state", ["failed", "loading", "gone"])
async def test_a_server_is_unhealthy_once_a_model_is_without_workers_for_too_long(
    make: Make, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    place = make()
    assert place.management.ping() == (200, {"status": "Healthy"})
    await place.register(initial_workers=1)
    await place.register("n.mar")
    assert place.management.ping().code == 200
    lane = place.directory.of_model("m")[0].lane
    place.directory.withdraw(lane)
    if state != "gone":
        place.directory.announce(ServedVersion(lane=lane, state=state))
    assert place.management.ping() == (200, {"status": "Healthy"})
    monkeypatch.setattr(archive_registry, "RETRIED_FOR_S", -1)
    assert place.management.ping().code == (500 if state == "failed" else 200), "120 s to start"
    monkeypatch.setattr(archive_registry, "RETRIED_FOR_S", -121)
    assert place.management.ping() == (500, {"status": "Unhealthy"})


async def test_a_server_that_drains_is_unhealthy(make: Make) -> None:
    place = make()
    place.is_leaving = True
    assert place.management.ping().code == 500


async def test_a_handler_describes_itself(make: Make) -> None:
    place = make()
    await place.register(initial_workers=1)
    (plain,) = (await place.management.describe("m")).document
    assert (plain["stateful"], plain["maxNumSequence"]) == (False, 0)
    assert "customizedMetadata" not in plain
    (custom,) = (await place.management.describe("m", is_customized=True)).document
    assert custom["customizedMetadata"] == {"describe": "True"}
    assert len((await place.management.describe("m", "all", is_customized=True)).document) == 1
    await place.management.scale("m", least=0, is_synchronous=True)
    words = (await refused(place.management.describe("m", is_customized=True)))[2]
    assert words.startswith('Model "m" has no worker to serve describe request.')


async def test_all_versions_are_in_their_order(make: Make, tmp_path: Path) -> None:
    place = make()
    for version in ("2.0", "1.0"):
        write_archive(tmp_path / "archives", name="m", modelVersion=version)
        await place.register()
    found = (await place.management.describe("m", "all")).document
    assert [one["modelVersion"] for one in found] == ["1.0", "2.0"]


async def test_calls_of_models_that_are_not_registered(make: Make) -> None:
    place = make()
    await place.register()
    management = place.management
    unknown = (404, "ModelNotFoundException", "Model not found: x")
    for work in (
        management.describe("x"), management.describe("x", "all"), management.scale("x"),
        management.unregister("x"), management.set_default("x", "1.0"),
        management.is_model_ready("x"),
    ):  # fmt: skip
        assert await refused(work) == unknown
    words = "Model version: 9 does not exist for model: m"
    for work in (
        management.describe("m", "9"), management.scale("m", "9"), management.unregister("m", "9"),
    ):  # fmt: skip
        assert await refused(work) == (404, "ModelVersionNotFoundException", words)


@pytest.mark.parametrize("name", ["a/b", "x" * 129])
async def test_names_that_no_model_can_have(make: Make, name: str) -> None:
    code, kind, _ = await refused(make().register(model_name=name))
    assert (code, kind) == (400, "BadRequestException")


async def test_words_of_the_platform_are_those_of_callers(make: Make) -> None:
    place = make()
    await place.register(initial_workers=1)
    place.fault = BackendError("model 'm' version 7 took over 9 s (execution_timeout_s)")
    with pytest.raises(RefusedError) as caught:
        await place.management.unregister("m")
    words = "model 'm' took over 9 s (responseTimeout)"
    assert caught.value.refusal == (500, "InternalServerException", words)
