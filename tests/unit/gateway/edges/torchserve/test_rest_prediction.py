"""Predictions over REST, with answers of handlers that the test gives."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flambeau.protocol.tensors import object_array
from model_store.archives.handler_calls import (
    REQUEST,
    RESPONSE,
    HandlerAnswer,
    HandlerRequest,
    decode_request,
    encode_answer,
    signature_of,
)
from model_store.archives.registrations import RegisteredModel, RegisteredVersion, Registrations
from model_store.archives.server_properties import ServerProperties
from model_store.store import ModelStore
from services.errors import (
    DeadlineExceededError,
    ServingError,
    ShuttingDownError,
    WorkerProcessDiedError,
    WouldMissDeadlineError,
)
from services.gateway.admission import Admission
from services.gateway.edges.torchserve.rest_prediction import LARGE_BYTES
from services.gateway.edges.torchserve.rest_routes import RestRoutes
from services.gateway.request_accounting import RequestAccounting
from services.gateway.torchserve.archive_registry import ArchiveRegistry
from services.gateway.torchserve.archive_source import ArchiveSource
from services.gateway.torchserve.management import Management
from services.gateway.torchserve.predictions import Predictions
from services.gateway.torchserve.tokens import Tokens
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.part_window import PartWindow
from services.queueing.records import InferReply, Lane, ServedVersion
from services.telemetry.metrics import Metrics
from services.telemetry.torchserve_metrics import TorchServeMetrics
from services.wire.http1.port import HttpPort
from tests.fixtures.redis_servers import until
from tests.unit.wire.http_wire import Answer, Wire, make_budget, make_limits, request, settle

LANE = Lane("m", 7)
LIMIT_BYTES = 200_000


class Handler:
    """An intake that answers when the test says so."""

    def __init__(self) -> None:
        self.held: list[Entry] = []
        self.discarded: list[str] = []

    @property
    def waiting(self) -> int:
        return len(self.held)

    def accept(self, entry: Entry) -> None:
        self.held.append(entry)

    def discard(self, entry: Entry, reason: str) -> None:
        self.held.remove(entry)
        self.discarded.append(reason)

    @property
    def asked(self) -> HandlerRequest:
        """The only request that waits."""
        (entry,) = self.held
        return decode_request(bytes(entry.request.inputs[REQUEST].item(0)))

    def answer(self, body: bytes = b"", **fields: Any) -> None:
        self.held.pop(0).finish(reply(HandlerAnswer(body=body, **fields)))

    def fail(self, error: ServingError) -> None:
        self.held.pop(0).finish(error)


def reply(answer: HandlerAnswer) -> InferReply:
    """Returns an answer as the only reply of a request."""
    outputs = {RESPONSE: object_array([encode_answer(answer)])}
    return InferReply(
        lane=LANE, outputs=outputs, datatypes={RESPONSE: "BYTES"}, batch_rows=1, queue_s=0.0,
        execution_s=0.0,
    )  # fmt: skip


def registered(number: int | None, **fields: Any) -> RegisteredVersion:
    """Returns a registered version."""
    return RegisteredVersion(
        url="m.mar", folder="/f", is_own_folder=False, number=number, min_workers=1, max_workers=1,
        batch_size=1, max_batch_delay_ms=1, response_timeout_s=1, startup_timeout_s=1,
        job_queue_size=2, **fields,
    )  # fmt: skip


class Place:
    """A port of the door, with model `m`, versions 1.0 and, without workers, 2.0."""

    def __init__(self, folder: Path, tokens: Tokens | None = None, **fields: Any) -> None:
        self.directory = directory = Directory()
        self.metrics = Metrics("test")
        directory.announce(ServedVersion(lane=LANE, state="ready", signature=signature_of(1)))
        directory.make_live(LANE)
        directory.set_aliases("m", {"v-1.0": 7, "production": 7})
        queue, self.handler = MemoryQueue(2), Handler()
        queue.open(LANE, self.handler)
        self.admission = Admission(
            directory, queue, self.metrics, max_in_flight_requests=8, request_timeout_s=99
        )
        accounting = RequestAccounting(self.metrics, directory, access_log=False)
        versions = {"1.0": registered(7, **fields), "2.0": registered(None)}
        registrations = Registrations(
            models={"m": RegisteredModel(default="1.0", versions=versions)}
        )
        figures = TorchServeMetrics(self.metrics.registry, with_host=False)
        predictions = Predictions(
            "torchserve", "200", self.admission, accounting, lambda: registrations, figures=figures
        )
        properties = ServerProperties(cors_allowed_origin="https://x", enable_model_api=True)
        registry = ArchiveRegistry(
            ModelStore(str(folder / "store")), folder, directory, _no_act, properties
        )
        source = ArchiveSource(folder, properties)
        management = Management(registry, predictions, source, properties, lambda: False)
        routes = RestRoutes(predictions, management, tokens, properties, infers=True, manages=True)
        limits = make_limits(max_request_bytes=LIMIT_BYTES)
        self.budget = make_budget()
        port = HttpPort(routes.route, limits, self.metrics, self.budget, unread=routes.unread)
        port.tick()
        self.wire = Wire(port)

    def ask(self, body: bytes = b"x", path: str = "/predictions/m", **headers: str) -> None:
        self.wire.send(request(path, body, **headers))

    def one(self) -> Answer:
        (answer,) = self.wire.answers()
        return answer

    def refused(self) -> tuple[int, str, str]:
        """Returns code, type and message of the only answer."""
        answer = self.one()
        document = json.loads(answer.body)
        assert answer.status == document["code"]
        assert answer.header("pragma") == "no-cache"
        return document["code"], document["type"], document["message"]

    def counted(self, code: str) -> float | None:
        labels = {"model": "m", "version": "7", "protocol": "torchserve", "code": code}
        return self.metrics.registry.get_sample_value("flambeau_requests_total", labels)


async def _no_act(act: str, model: str, dependents: bool) -> None:
    """Nothing is loaded here."""


Make = Callable[..., Place]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda *arguments, **fields: Place(tmp_path, *arguments, **fields)


async def test_the_handler_gets_the_request_and_its_answer_is_sent(make: Make) -> None:
    place = make()
    place.ask(b"in", "/predictions/m/1.0/a/b", content_type="text/plain", x_mine="v")
    asked = place.handler.asked
    (part,) = asked.parts
    assert (part.name, part.content_type, bytes(part.data)) == ("body", "text/plain", b"in")
    assert (asked.headers["x-mine"], asked.headers["url_path"]) == ("v", "a/b")
    place.handler.answer(b"out", status=418, headers={"X-A": "1", "content-type": "a/b"})
    answer = place.one()
    assert (answer.status, answer.body) == (418, b"out")
    assert answer.header("x-a") == "1"
    assert answer.header("content-type") == "a/b"
    assert answer.header("x-request-id") == asked.id
    assert answer.header("access-control-allow-origin") == "https://x"
    assert place.counted("200") == 1


async def test_request_that_waits_for_its_model_counts_as_one(make: Make) -> None:
    place = make()
    place.directory.missing = lambda _lane, _is_known: None
    away = ServedVersion(lane=LANE, state="unloaded", reason="made room", comes_back=True)
    place.directory.announce(away)
    place.ask()
    await settle()
    place.directory.announce(ServedVersion(lane=LANE, state="ready", signature=signature_of(1)))
    await until(lambda: place.handler.waiting == 1)
    place.handler.answer(b"out")
    assert place.one().status == 200
    counted = {
        sample.value
        for family in place.metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("ts_inference_requests")
    }
    assert counted == {1.0}


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "1\r\nX-B: 2"},
        {"X-A\r\nX-B": "2"},
        {"X-A": "\0"},
        {"": "x"},
        {"X A": "x"},
        {"Content-Length": "1"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "close"},
        {"X-Request-Id": "mine"},
    ],
)
async def test_headers_that_would_break_the_answer_are_left_out(
    make: Make, headers: dict[str, str]
) -> None:
    place = make()
    place.ask()
    usual = place.handler.asked.id
    place.handler.answer(b"out", headers={**headers, "x-fine": "\u20ac"})
    answer = place.one()
    assert (answer.body, answer.header("x-request-id")) == (b"out", usual)
    assert answer.header("x-fine") == "?"
    assert {name for name, _ in answer.headers}.isdisjoint(("x-a", "x-b"))


@pytest.mark.parametrize("status", [-1, 0, 100, 101, 199, 600, 99999])
async def test_a_status_that_ends_nothing_is_500(make: Make, status: int) -> None:
    place = make()
    place.ask()
    place.handler.answer(b"out", status=status)
    assert place.one().status == 500


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none(make: Make, status: int) -> None:
    place = make()
    place.ask()
    place.handler.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", status=status)
    place.ask()
    place.handler.answer(b"next")
    assert [answer.status for answer in place.wire.answers()] == [status, 200]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/predictions/none", (404, "ModelNotFoundException", "Model not found: none")),
        ("/predictions/m/3.0", (404, "ModelVersionNotFoundException",
         "Model version: 3.0 does not exist for model: m")),
        ("/predictions/m/7", (404, "ModelVersionNotFoundException",
         "Model version: 7 does not exist for model: m")),
        ("/predictions/m/v-1.0", (404, "ModelVersionNotFoundException",
         "Model version: v-1.0 does not exist for model: m")),
        ("/predictions/m/2.0", (503, "ServiceUnavailableException",
         'Model "m" Version 2.0" has no worker')),
        ("/predictions/m%2F1.0", (404, "ModelNotFoundException", "Model not found: m%2F1.0")),
    ],
)  # fmt: skip
async def test_models_that_cannot_answer(
    make: Make, path: str, expected: tuple[int, str, str]
) -> None:
    place = make()
    place.ask(b"--", path, content_type="multipart/form-data; boundary=b")  # it is not decoded
    code, kind, message = place.refused()
    assert (code, kind) == expected[:2]
    assert message.startswith(expected[2])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WorkerProcessDiedError("died"), (500, "InternalServerException", "Worker died.")),
        (DeadlineExceededError("late"), (408, "RequestTimeoutException", "late")),
        (WouldMissDeadlineError("too late"), (408, "RequestTimeoutException", "too late")),
        (ShuttingDownError("leaving"), (503, "ServiceUnavailableException", "leaving")),
    ],
)
async def test_errors_of_the_request_path(
    make: Make, error: ServingError, expected: tuple[int, str, str]
) -> None:
    place = make()
    place.ask()
    place.handler.fail(error)
    assert place.refused() == expected
    assert place.counted(str(expected[0])) == 1


@pytest.mark.parametrize(("status", "code"), [(503, 503), (507, 507), (413, 507), (400, 400)])
async def test_failures_of_handlers(make: Make, status: int, code: int) -> None:
    place = make()
    place.ask()
    place.handler.answer(status=status, failure="Prediction failed")
    assert place.refused() == (code, "InternalServerException", "Prediction failed")


async def test_words_of_handlers_that_utf8_does_not_have(make: Make) -> None:
    place = make()
    place.ask()
    place.handler.answer(status=404, failure="no \ud800 here")
    assert place.refused() == (404, "InternalServerException", "no ? here")


async def test_words_of_callers_that_utf8_does_not_have(make: Make) -> None:
    place = make()
    given = rb'{"url": "x.mar", "runtime": "a\ud800"}'
    place.ask(given, "/models", content_type="application/json")
    await settle()
    code, kind, message = place.refused()
    assert (code, kind) == (400, "BadRequestException")
    assert message.isascii()


async def test_a_full_queue_is_in_torchserves_words(make: Make) -> None:
    place = make()
    for _ in range(3):
        place.ask()
    place.handler.answer(b"1")
    place.handler.answer(b"2")
    *_, refused = place.wire.answers()
    message = json.loads(refused.body)["message"]
    assert (refused.status, message.partition(" has ")[0]) == (503, 'Model "m"')


async def test_the_archive_says_how_long_callers_wait(make: Make) -> None:
    place = make(client_timeout_ms=5000)
    for path in ("/predictions/m", "/predictions/m/1.0"):
        place.ask(b"x", path)
        entry = place.handler.held[0]
        assert entry.deadline - entry.enqueued_at == pytest.approx(5, abs=0.5)
        place.handler.answer()


class Streaming:
    """A request whose handler sends intermediate answers."""

    def __init__(self, place: Place) -> None:
        place.ask()
        self.entry = place.handler.held[0]
        self.window = self.entry.window = PartWindow()

    def give(self, body: bytes, **fields: Any) -> None:
        """Gives one part, which its window must have room for."""
        number = self.window.given
        assert self.window.give(0)
        part = reply(HandlerAnswer(body=body, **fields))
        self.entry.part(
            msgspec.structs.replace(part, number=number, is_last=False, window=self.window)
        )

    def end(self) -> None:
        self.entry.finish(msgspec.structs.replace(reply(HandlerAnswer()), outputs={}))


async def test_intermediate_answers_are_sent_as_they_come(make: Make) -> None:
    place = make()
    stream = Streaming(place)
    stream.give(b"one ", is_intermediate=True, status=201, headers={"x-a": "1"})
    assert place.wire.output.endswith(b"4\r\none \r\n")
    stream.give(b"", is_intermediate=True)
    stream.give(b"two ", is_intermediate=True)
    stream.give(b"end")
    assert b"end" not in place.wire.output
    stream.end()
    answer = place.one()
    assert (answer.status, answer.header("x-a"), answer.body) == (201, "1", b"one two end")
    assert answer.header("ts_stream_next") == "true"
    assert place.counted("200") == 1


@pytest.mark.parametrize("status", [204, 304])
async def test_intermediate_answers_have_a_body_whatever_their_status(
    make: Make, status: int
) -> None:
    place = make()
    stream = Streaming(place)
    stream.give(b"one ", is_intermediate=True, status=status, headers={"x-a": "1"})
    stream.give(b"end", status=status)
    stream.end()
    answer = place.one()
    assert (answer.status, answer.header("x-a"), answer.body) == (200, "1", b"one end")


async def test_a_last_answer_alone_is_no_stream(make: Make) -> None:
    place = make()
    stream = Streaming(place)
    stream.give(b"end", headers={"x-a": "1"})
    stream.end()
    answer = place.one()
    assert (answer.header("content-length"), answer.header("x-a")) == ("3", "1")
    assert answer.header("transfer-encoding") is None


async def test_a_failure_behind_intermediate_answers_ends_the_connection(make: Make) -> None:
    place = make()
    stream = Streaming(place)
    stream.give(b"one", is_intermediate=True)
    stream.give(b"", status=503, failure="Prediction failed")
    assert place.wire.output.endswith(b"3\r\none\r\n")
    assert place.wire.is_closing()


async def test_a_caller_that_leaves_ends_its_request(make: Make) -> None:
    place = make()
    place.ask(b"x" * LARGE_BYTES * 2)
    assert place.budget.held_bytes > LARGE_BYTES * 3  # the body, and the handler's copy
    place.wire.lose()
    assert place.handler.discarded == ["cancelled"]
    assert place.budget.held_bytes == 0
    assert place.counted("499") == 1


@pytest.mark.parametrize("path", ["/predictions/m", "/invocations"])
async def test_a_large_body_in_parts_is_charged_with_one_copy(make: Make, path: str) -> None:
    head = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
    body = (head.format("model_name") + "m\r\n" + head.format("data")).encode()
    body += b"x" * LARGE_BYTES * 2 + b"\r\n--b--"
    place = make()
    place.ask(body, path, content_type="multipart/form-data; boundary=b")
    while not place.handler.held:
        await settle()
    assert [part.name for part in place.handler.asked.parts] == ["model_name", "data"]
    assert len(body) * 2 <= place.budget.held_bytes < len(body) * 2.1
    place.handler.answer(b"out")
    assert place.one().body == b"out"
    assert place.budget.held_bytes == 0


async def test_large_answers_are_charged_until_they_are_written(make: Make) -> None:
    place = make()
    place.ask(b"x" * LARGE_BYTES * 2)
    place.handler.answer(b"y" * LARGE_BYTES * 3)
    assert place.one().body == b"y" * LARGE_BYTES * 3
    assert place.budget.held_bytes == 0


async def test_a_body_over_the_limit_is_refused_in_torchserves_form(make: Make) -> None:
    place = make()
    place.ask(b"x" * (LIMIT_BYTES + 1))
    code, kind, _ = place.refused()
    assert (code, kind) == (413, "BadRequestException")
    assert place.handler.held == []


async def test_a_compressed_body_reaches_the_handler_as_it_was_sent(make: Make) -> None:
    place = make()
    body = gzip.compress(b"x" * 100)
    place.ask(body, content_encoding="gzip")
    assert bytes(place.handler.asked.parts[0].data) == body
    assert place.handler.asked.headers["content-encoding"] == "gzip"


async def test_tokens_are_checked_for_every_request(make: Make, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "key_file.json", 99)
    tokens.create()
    keys = json.loads((tmp_path / "key_file.json").read_text())
    place, header = make(tokens), f"Bearer {keys['inference']['key']}"
    place.ask(authorization=header)
    place.handler.answer(b"1")
    tokens.renew("inference")
    place.ask(authorization=header)  # the head is known
    place.ask(b"x" * LARGE_BYTES)
    first, second, third = place.wire.answers()
    assert (first.status, second.status) == (200, 400)
    assert json.loads(second.body)["type"] == "InvalidKeyException"
    assert third.status == 400
    assert place.handler.held == []


HEAD = b"POST /predictions/m HTTP/1.1\r\nhost: h\r\n"


@pytest.mark.parametrize(
    ("sent", "code", "kind"),
    [
        (b"\x00\x01\r\n\r\n", 400, "BadRequestException"),
        (HEAD + b"x: " + b"y" * 200_000 + b"\r\n\r\n", 431, "BadRequestException"),
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n", 501, "InternalServerException"),
        (HEAD + b"content-length: 999999\r\n\r\n", 413, "BadRequestException"),
        (HEAD, 408, "RequestTimeoutException"),
        (HEAD + b"content-length: 9\r\n\r\nslow", 408, "RequestTimeoutException"),
    ],
)
async def test_what_is_no_request_is_refused_in_the_same_form(
    make: Make, sent: bytes, code: int, kind: str
) -> None:
    place = make()
    place.wire.send(sent)
    place.wire.connection.port.now += 61
    place.wire.connection.sweep()
    assert place.refused()[:2] == (code, kind)
