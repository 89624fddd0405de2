"""The REST edge above a fake admission: routes, timeouts, priorities, failures, disconnections."""

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from services.errors import BackendError, QueueFullError, ServingError
from services.gateway.admission import Admission, InferCall
from services.gateway.edges.rest_edge import RestEdge
from services.gateway.edges.rest_infer import WAY_BACK_S
from services.gateway.request_accounting import RequestAccounting
from services.gateway.request_pacer import PacedRequest, RequestPacer
from services.gateway.scheduling_parameters import time_for_work
from services.gateway.server_facts import ServerFacts
from services.gateway.sliced_work import SlicedWork
from services.queueing.directory import Directory
from services.queueing.memory_queue import Done, MemoryQueue
from services.queueing.records import Lane
from services.readiness import Readiness
from services.telemetry.metrics import Metrics
from services.wire.body import Body
from services.wire.http1.port import HttpPort
from tests.fixtures.queue_ends import reply_of
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one
from tests.unit.wire import http_wire
from tests.unit.wire.http_wire import (
    Answer,
    Wire,
    compression_idle,
    on_loop,
    request,
    settle,
)

LANE = Lane("m", 1)
INFER = "/v2/models/m/infer"
BODY = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'


class FakeEntry:
    def __init__(self, call: InferCall, answered: Done) -> None:
        self.call = call
        self.answered = answered
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def answer(self, values: Any = (1.0, 2.0)) -> None:
        self.answered(reply_of({"y": np.array([values], np.float32)}))


class FakeAdmission:
    """Records admitted requests; refuses or answers at once if configured."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.turns = RequestPacer()
        self.work = SlicedWork()
        self.draining = False
        self.error_words = None
        self.callers = None
        self.entries: list[FakeEntry] = []
        self.error: Exception | None = None
        self.at_once = False

    def infer(self, call: InferCall, answered: Done) -> FakeEntry:
        if self.error is not None:
            raise self.error
        entry = FakeEntry(call, answered)
        self.entries.append(entry)
        if self.at_once:
            entry.answer()
        return entry


class Line:
    """Replaces a `RequestPacer`: holds requests until it is released."""

    def __init__(self) -> None:
        self.waiting: list[tuple[PacedRequest, Body]] = []

    def begin(self, request: PacedRequest, body: Body, connection: object) -> None:
        self.waiting.append((request, body))

    def go_on(self, received_at: float) -> None:
        for waiting, body in self.waiting:
            waiting.begin_in_turn(body, received_at)


class Edge:
    """A REST edge on a wire."""

    def __init__(self) -> None:
        directory = serving(one_to_one((2,), rows=4), LANE)
        self.metrics = Metrics("test")
        self.admission = FakeAdmission(directory)
        real = Admission(
            directory,
            MemoryQueue(1),
            self.metrics,
            max_in_flight_requests=1,
            request_timeout_s=1,
        )
        edge = RestEdge(
            self.admission,  # type: ignore[arg-type]
            ServerFacts("test", directory, real, Readiness()),
            RequestAccounting(self.metrics, directory, access_log=False),
        )
        limits = http_wire.make_limits(max_request_bytes=10_000)
        port = HttpPort(edge.route, limits, self.metrics, http_wire.make_budget())
        port.tick()
        self.wire = Wire(port)

    @property
    def entry(self) -> FakeEntry:
        """The newest admitted request."""
        return self.admission.entries[-1]

    def post(self, path: str = INFER, body: bytes = BODY, **headers: Any) -> None:
        """Sends an inference."""
        self.wire.send(request(path, body, **headers))

    def one(self) -> Answer:
        """Returns the only response."""
        (answer,) = self.wire.answers()
        return answer

    def counted(self) -> Mapping[str, float]:
        """Counts requests by code, of the served model only."""
        return {
            sample.labels["code"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "flambeau_requests_total" and sample.labels["model"] == "m"
        }


def error_of(answer: Answer) -> str:
    document = orjson.loads(answer.body)
    assert list(document) == ["error"]
    assert answer.header("content-type") == "application/json"
    return str(document["error"])


def test_inference_there_and_back() -> None:
    async def test() -> None:
        edge = Edge()
        edge.post(x_request_id="given")
        call = edge.entry.call
        assert (call.model, call.version, call.request_id) == ("m", "", "given")
        assert call.inputs[0].array.tolist() == [[1, 2]]
        assert (call.deadline, call.priority) == (math.inf, 0)
        assert edge.wire.output == b""
        edge.entry.answer((0.5, 2))
        answer = edge.one()
        assert (answer.status, answer.header("x-request-id")) == (200, "given")
        assert orjson.loads(answer.body)["outputs"][0]["data"] == [0.5, 2]
        assert edge.counted() == {"200": 1}

    on_loop(test)


def test_answer_before_the_call_returns() -> None:
    async def test() -> None:
        edge = Edge()
        edge.admission.at_once = True
        edge.post()
        edge.post()
        assert [answer.status for answer in edge.wire.answers()] == [200, 200]
        edge.wire.connection.connection_lost(None)
        assert not any(entry.cancelled for entry in edge.admission.entries)

    on_loop(test)


@pytest.mark.parametrize(
    ("path", "model", "version"),
    [
        ("/v2/models/m/infer", "m", ""),
        ("/v2/models/m/infer?verbose=1", "m", ""),
        ("/v2/models/m/versions/1/infer", "m", "1"),
        ("/v2/models/%6D/versions/%31/infer", "m", "1"),
        ("/v2/models/my%20%C3%A9/infer", "my é", ""),
        ("/v2/models/a%2Fversions%2F1/infer", "a%2Fversions%2F1", ""),
        ("/v2/models/a%2F..%2Fm/infer", "a%2F..%2Fm", ""),
        ("http://host:1/v2/models/m/infer", "m", ""),
    ],
)
def test_names_in_the_url(path: str, model: str, version: str) -> None:
    async def test() -> None:
        edge = Edge()
        edge.post(path)
        assert (edge.entry.call.model, edge.entry.call.version) == (model, version)

    on_loop(test)


@pytest.mark.parametrize(
    "path",
    ["/v2/models//infer", "/v2/models/m/infer/", "/V2/models/m/infer", "/v2%2Fmodels/m/infer"],
)
def test_what_is_no_inference(path: str) -> None:
    async def test() -> None:
        edge = Edge()
        edge.post(path)
        await settle()
        assert edge.one().status == 404
        assert "unknown path" in error_of(edge.one())
        assert edge.admission.entries == []

    on_loop(test)


def test_other_methods() -> None:
    async def test() -> None:
        edge = Edge()
        edge.wire.send(request(INFER, method="GET"))
        answer = edge.one()
        assert (answer.status, answer.header("allow")) == (405, "POST")
        assert error_of(answer) == f"GET is not allowed on {INFER}; use POST"

    on_loop(test)


PARAMETERS = b'{"parameters":{"timeout":%d,"priority":%d},' + BODY[1:]


@pytest.mark.parametrize(
    ("header", "timeout_us", "timeout_s"),
    [
        (None, 0, None),
        (None, 1500, 0.0015),
        ("250", 0, 0.25),
        ("0.5", 0, 0.0005),
        ("250", 100_000, 0.1),
        ("250", 300_000, 0.25),
        ("9999999999", 0, 9999999.999),
    ],
)
def test_smaller_limit_wins(header: str | None, timeout_us: int, timeout_s: float | None) -> None:
    async def test() -> None:
        edge, line = Edge(), Line()
        edge.admission.turns = line  # type: ignore[assignment]
        headers = {} if header is None else {"x_request_timeout_ms": header}
        edge.post(body=PARAMETERS % (timeout_us, 3), **headers)
        line.go_on(received_at=0.0)
        left = math.inf if timeout_s is None else time_for_work(timeout_s, WAY_BACK_S)
        assert edge.entry.call.deadline == left
        assert edge.entry.call.priority == 3

    on_loop(test)


@pytest.mark.parametrize(("header", "timeout_us"), [("250", 0), (None, 250_000)])
def test_time_that_a_request_waited_for_its_turn_is_gone(
    header: str | None, timeout_us: int
) -> None:
    async def test() -> None:
        edge, line = Edge(), Line()
        edge.admission.turns = line  # type: ignore[assignment]
        headers = {} if header is None else {"x_request_timeout_ms": header}
        edge.post(body=PARAMETERS % (timeout_us, 3), **headers)
        assert not edge.admission.entries
        received_at = time.monotonic() - 0.2
        line.go_on(received_at)
        assert edge.entry.call.deadline == received_at + time_for_work(0.25, WAY_BACK_S)
        edge.entry.answer()
        assert edge.one().status == 200
        seconds = edge.metrics.registry.get_sample_value(
            "flambeau_request_duration_seconds_sum",
            {"model": "m", "version": "1", "protocol": "rest"},
        )
        assert seconds is not None
        assert seconds >= 0.2, "the wait is not in what the request took"

    on_loop(test)


@pytest.mark.parametrize(
    "value", ["0", "0.0", "-1", "1e3", "250m", "", "nan", "1_0", "٣", "9" * 11]
)
def test_limit_that_is_none(value: str) -> None:
    async def test() -> None:
        edge = Edge()
        edge.wire.send(request(INFER, BODY, x_request_timeout_ms=value))
        edge.post()
        assert "x-request-timeout-ms must be a number of milliseconds" in error_of(edge.one())
        assert edge.one().status == 400
        edge.entry.answer()
        assert [answer.status for answer in edge.wire.answers()] == [400, 200]

    on_loop(test)


def test_unknown_model_is_told_before_a_bad_body() -> None:
    async def test() -> None:
        edge = Edge()
        edge.post("/v2/models/n/infer", b"nonsense")
        assert edge.one().status == 404

    on_loop(test)


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [(QueueFullError("full"), 503, "1"), (BackendError("broken"), 500, None)],
)
@pytest.mark.parametrize("later", [False, True])
def test_refusal(error: ServingError, status: int, retry: str | None, later: bool) -> None:
    async def test() -> None:
        edge = Edge()
        edge.admission.error = None if later else error
        edge.post(x_request_id="mine")
        if later:
            edge.entry.answered(error)
        answer = edge.one()
        assert (answer.status, error_of(answer)) == (status, str(error))
        assert answer.header("retry-after") == retry
        assert answer.header("x-request-id") == "mine"
        assert edge.counted() == {str(status): 1}

    on_loop(test)


@pytest.mark.parametrize("later", [False, True])
def test_fault_of_our_own_fails_one_request(later: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        edge = Edge()
        edge.admission.error = None if later else ZeroDivisionError("secret")
        edge.post()
        if later:
            edge.entry.answered(object())  # type: ignore[arg-type]
        answer = edge.one()
        assert answer.status == 500
        assert "see the server's log" in error_of(answer)
        assert edge.counted() == {"500": 1}

    with caplog.at_level(logging.ERROR):
        on_loop(test)
    assert "inference failed" in caplog.text


@pytest.mark.parametrize("value", ["a\tb", "x" * 129, "é", ""])
def test_unsafe_id_is_replaced(value: str) -> None:
    async def test() -> None:
        edge = Edge()
        edge.post(x_request_id=value)
        edge.entry.answer()
        found = edge.one().header("x-request-id")
        assert found == edge.entry.call.request_id
        assert found is not None
        assert len(found) == 28

    on_loop(test)


# Clients that disconnect, and bodies that never arrive.


def test_hang_up_cancels_the_work() -> None:
    async def test() -> None:
        edge = Edge()
        edge.post()
        edge.wire.connection.connection_lost(None)
        assert edge.entry.cancelled
        assert edge.counted() == {"499": 1}

    on_loop(test)


def test_hang_up_of_who_waits_for_its_turn_is_counted() -> None:
    async def test() -> None:
        edge, line = Edge(), Line()
        edge.admission.turns = line  # type: ignore[assignment]
        edge.post()
        over = [waiting.is_over for waiting, _ in line.waiting]
        edge.wire.connection.connection_lost(None)
        over += [waiting.is_over for waiting, _ in line.waiting]
        assert over == [False, True]
        assert edge.counted() == {"499": 1}

    on_loop(test)


def test_hang_up_in_mid_body_is_counted() -> None:
    async def test() -> None:
        edge = Edge()
        edge.wire.send(request(INFER, BODY)[:-1])
        edge.wire.connection.connection_lost(None)
        assert edge.counted() == {"499": 1}
        assert edge.admission.entries == []

    on_loop(test)


def test_answered_request_is_not_cancelled() -> None:
    async def test() -> None:
        edge = Edge()
        edge.post()
        edge.entry.answer()
        edge.wire.connection.connection_lost(None)
        assert not edge.entry.cancelled
        assert edge.counted() == {"200": 1}

    on_loop(test)


def test_body_over_the_limit_is_counted_for_its_model() -> None:
    async def test() -> None:
        edge = Edge()
        edge.wire.send(request(INFER, b" " * 10_001, x_request_id="big"))
        answer = edge.one()
        assert (answer.status, answer.header("x-request-id")) == (413, "big")
        assert edge.counted() == {"413": 1}

    on_loop(test)


# Compression.


@pytest.mark.parametrize(("accept", "encoding"), [("gzip", "gzip"), ("br", None)])
def test_compressed_answer(accept: str, encoding: str | None) -> None:
    async def test() -> None:
        edge = Edge()
        edge.post(accept_encoding=accept)
        edge.entry.answer(list(range(1000)))
        assert edge.one().header("content-encoding") == encoding

    on_loop(test)


def test_hang_up_while_a_thread_compresses() -> None:
    async def test() -> None:
        edge = Edge()
        edge.post(accept_encoding="gzip")
        edge.entry.answer(list(range(50_000)))
        assert edge.wire.output == b"", "it was compressed on the loop"
        edge.wire.connection.connection_lost(None)
        await compression_idle(edge.wire.connection.port)
        assert edge.wire.output == b""
        assert edge.counted() == {"499": 1}

    on_loop(test)
