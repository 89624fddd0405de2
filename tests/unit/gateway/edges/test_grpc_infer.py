"""One inference between its connection and admission: every order of response and disconnection."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from protos import open_inference_pb2 as pb
from services.errors import (
    InvalidRequestError,
    QueueFullError,
    ServingError,
    UnknownModelError,
)
from services.gateway import sliced_work
from services.gateway.admission import InferCall
from services.gateway.edges.binary_texts import TEXT_OVERHEAD_BYTES
from services.gateway.edges.grpc_infer import GRPC, WAY_BACK_S, GrpcInferRoute, InferenceCall
from services.gateway.inference import InferencePath
from services.gateway.request_accounting import RequestAccounting
from services.gateway.scheduling_parameters import time_for_work
from services.gateway.sliced_work import SlicedWork
from services.queueing.memory_queue import Outcome
from services.queueing.records import InferReply, Lane
from services.telemetry.metrics import Metrics
from services.wire.body import Body
from services.wire.http2.grpc_call import UnaryCall
from services.wire.http2.grpc_head import GrpcHead
from tests.fixtures.queue_ends import reply_of
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one
from tests.unit.wire.http_wire import make_budget

LANE = Lane("m", 1)
SIGNATURE = one_to_one((2,), rows=4)


class Entry:
    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class Written(UnaryCall):
    """A call that records its writes."""

    answer: pb.ModelInferResponse | None = None
    metadata = b""
    refusal: tuple[ServingError, dict[str, str]] | None = None

    def reply(self, message: bytes, metadata: bytes = b"") -> None:
        assert not self.is_over
        self.is_over = True
        self.answer = pb.ModelInferResponse.FromString(message)
        self.metadata = metadata

    def fail(self, error: ServingError, *metadata: tuple[str, str]) -> None:
        assert not self.is_over
        self.is_over = True
        self.refusal = error, dict(metadata)


class Call(InferenceCall, Written):
    """An inference that records its response."""

    def leave(self) -> None:
        """Does the connection's part after a client's disconnection."""
        if not self.is_over:
            self.is_over = True
            self.abandon()


class Turns:
    """Replaces a `RequestPacer`: the last byte of each call came at that second."""

    received_at = 0.0

    def begin(self, request: InferenceCall, body: Body, connection: object) -> None:
        request.begin_in_turn(body, self.received_at)


class World:
    """A route among fakes; `begin` starts a call on it, as a connection would."""

    def __init__(self) -> None:
        self.directory = serving(SIGNATURE, LANE)
        self.metrics = Metrics("test")
        self.accounting = RequestAccounting(self.metrics, self.directory, access_log=False)
        self.error_words = None
        self.callers = None
        self.path = InferencePath(GRPC, cast(Any, self), self.accounting)
        self.turns = Turns()
        self.work = SlicedWork()
        self.asked: list[tuple[InferCall, Callable[[Outcome], None]]] = []
        self.entry = Entry()
        self.at_once: Outcome | None = None
        self.raised: Exception | None = None

    def infer(self, call: InferCall, answered: Callable[[Outcome], None]) -> Entry:
        """Replaces admission."""
        self.asked.append((call, answered))
        if self.raised is not None:
            raise self.raised
        if self.at_once is not None:
            answered(self.at_once)
        return self.entry

    def answer(self, outcome: Outcome) -> None:
        self.asked[-1][1](outcome)

    def call(self, timeout: str = "") -> Call:
        """Starts a call whose message has not arrived."""
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
            (b"content-type", b"application/grpc"),
            (b"x-request-id", b"from-metadata"),
        ]
        if timeout:
            fields.append((b"grpc-timeout", timeout.encode()))
        head = GrpcHead(fields)
        route = GrpcInferRoute(self.path, head)
        connection = SimpleNamespace(
            port=SimpleNamespace(now=0.0, budget=make_budget()),
            sending=SimpleNamespace(unsent_bytes=0),
            share_bytes=1,
            unfinished_bytes=0,
        )
        return Call(route, cast(Any, connection), head, 1)

    def begin(self, request: Any = None, timeout: str = "", **fields: Any) -> Call:
        """Starts a call whose message has arrived."""
        call = self.call(timeout)
        call.take((request or good_request(**fields)).SerializeToString())
        call.end_input()
        return call

    def assert_over(self, *codes: str) -> None:
        """Asserts that every call had one outcome."""
        counted = {
            sample.labels["code"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "flambeau_requests_total" and sample.value
        }
        assert counted == Counter(codes)


def good_request(**fields: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m", **fields)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
    return request


def good_answer(outputs: Any = None) -> InferReply:
    return reply_of(outputs or {"y": np.array([[3, 4]], np.float32)}, datatypes={"y": "FP32"})


@pytest.fixture
def world() -> World:
    return World()


def test_answer(world: World) -> None:
    call = world.begin(id="mine")
    assert not call.is_over
    world.answer(good_answer())
    assert call.answer is not None
    assert (call.answer.model_version, call.answer.id) == ("1", "mine")
    assert np.frombuffer(call.answer.raw_output_contents[0], np.float32).tolist() == [3, 4]
    assert b"x-request-id\x04mine" in call.metadata
    call.leave()
    world.assert_over("OK")
    assert not world.entry.cancelled


def test_answer_before_admission_returns(world: World) -> None:
    world.at_once = good_answer()
    call = world.begin()
    assert call.answer is not None
    call.leave()
    world.assert_over("OK")
    assert not world.entry.cancelled


def test_caller_leaves_while_it_waits(world: World) -> None:
    world.begin().leave()
    world.assert_over("CANCELLED")
    assert world.entry.cancelled == 1


def test_caller_leaves_before_its_message_is_whole(world: World) -> None:
    world.call().leave()
    world.assert_over("CANCELLED")
    assert not world.asked, "work was begun for a caller that had gone"


def test_answer_for_a_caller_who_has_gone(world: World) -> None:
    call = world.begin()
    call.leave()
    world.answer(good_answer())
    assert call.answer is None
    world.assert_over("CANCELLED")


@pytest.mark.parametrize(
    ("timeout", "code"),
    [
        ("1n", "DEADLINE_EXCEEDED"),
        ("4m", "DEADLINE_EXCEEDED"),
        ("1H", "CANCELLED"),
        ("", "CANCELLED"),
    ],
)
def test_out_of_time_or_cancelled(world: World, timeout: str, code: str) -> None:
    world.begin(timeout=timeout).leave()
    world.assert_over(code)


def test_refusal_by_admission(world: World) -> None:
    world.raised = error = UnknownModelError("who?")
    call = world.begin()
    assert call.refusal == (error, {"x-request-id": "from-metadata"})
    world.assert_over("NOT_FOUND")


@pytest.mark.parametrize("at_once", [True, False])
def test_refusal_by_the_queue(world: World, at_once: bool) -> None:
    error = QueueFullError("full")
    world.at_once = error if at_once else None
    call = world.begin()
    if not at_once:
        world.answer(error)
    assert call.refusal == (error, {"x-request-id": "from-metadata"})
    call.leave()
    world.assert_over("RESOURCE_EXHAUSTED")


def test_fault_of_our_own(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.raised = ZeroDivisionError("secret")
    call = world.begin()
    assert call.refusal is not None
    assert call.refusal[0].grpc_code == "INTERNAL"
    assert "secret" not in str(call.refusal[0])
    assert "secret" in caplog.text
    world.assert_over("INTERNAL")


def test_answer_that_cannot_be_written(world: World) -> None:
    call = world.begin()
    outputs = {"y": cast(Any, object())}
    world.answer(good_answer(outputs))
    assert call.refusal is not None
    assert call.refusal[0].grpc_code == "INTERNAL"
    world.assert_over("INTERNAL")


def test_message_that_cannot_be_read_is_counted(world: World) -> None:
    call = world.call()
    call.take(b"\x0a\x02\xff\xfe")
    call.end_input()
    assert call.refusal is not None
    assert "not a valid message" in str(call.refusal[0])
    world.assert_over("INVALID_ARGUMENT")
    assert not world.asked


def test_what_never_became_a_message_is_counted(world: World) -> None:
    call = world.call()
    call.refuse(InvalidRequestError("too much"))
    assert call.refusal is not None
    assert call.refusal[1] == {"x-request-id": "from-metadata"}
    world.assert_over("INVALID_ARGUMENT")


def test_call_without_a_message(world: World) -> None:
    call = world.call()
    call.end_input()
    assert call.refusal is not None
    assert "no message" in str(call.refusal[0])
    world.assert_over("INVALID_ARGUMENT")


def test_tensors_that_cannot_be_read(world: World) -> None:
    request = good_request()
    request.inputs[0].shape[:] = [1, 3]
    call = world.begin(request)
    assert call.refusal is not None
    assert call.refusal[0].grpc_code == "INVALID_ARGUMENT"
    world.assert_over("INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("timeout_us", "timeout", "timeout_s"),
    [
        (None, "7S", 7.0), (0, "7S", 7.0), (2_500_000, "7S", 2.5), (9_000_000, "7S", 7.0),
        (2_500_000, "", 2.5), (None, "", None),
    ],
)  # fmt: skip
def test_smaller_of_both_timeouts(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    timeout_us: int | None,
    timeout: str,
    timeout_s: float | None,
) -> None:
    monkeypatch.setattr("services.gateway.edges.grpc_infer.time.monotonic", lambda: 0.0)
    request = good_request()
    if timeout_us is not None:
        request.parameters["timeout"].int64_param = timeout_us
    world.begin(request, timeout)
    expected = math.inf if timeout_s is None else time_for_work(timeout_s, WAY_BACK_S)
    assert world.asked[0][0].deadline == expected


def test_time_its_message_took_to_come_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.edges.grpc_infer.time.monotonic", lambda: -3.0)
    call = world.call("7S")
    call.take(good_request().SerializeToString())
    call.end_input()
    assert world.asked[0][0].deadline == time_for_work(4.0, WAY_BACK_S)


@pytest.mark.parametrize(("timeout", "timeout_us"), [("7S", 0), ("", 7_000_000)])
def test_time_that_a_call_waited_for_its_turn_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch, timeout: str, timeout_us: int
) -> None:
    monkeypatch.setattr("services.gateway.edges.grpc_infer.time.monotonic", lambda: -3.0)
    world.turns.received_at = -3.0
    request = good_request()
    request.parameters["timeout"].int64_param = timeout_us
    world.begin(request, timeout)
    assert world.asked[0][0].deadline == -3.0 + time_for_work(7.0, WAY_BACK_S)


def test_priority_and_names_reach_admission(world: World) -> None:
    request = good_request(model_version="3")
    request.parameters["priority"].uint64_param = 2
    request.outputs.add(name="y")
    world.begin(request)
    asked = world.asked[0][0]
    assert (asked.model, asked.version, asked.priority, list(asked.outputs)) == ("m", "3", 2, ["y"])
    assert asked.request_id == "from-metadata"


def texts_request(count: int, claimed: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="text", datatype="BYTES", shape=[claimed])
    request.raw_input_contents.append(b"\x01\x00\x00\x00a" * count)
    return request


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_work, "TURN_S", 0.0)


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("short_turns")
async def test_many_texts_are_read_in_slices_and_their_memory_is_charged(world: World) -> None:
    count = 20_000
    call = world.begin(texts_request(count, count))
    budget = call.connection.port.budget
    assert not world.asked, "the loop has its turn first"
    await settle()
    (tensor,) = world.asked[0][0].inputs
    assert tensor.array.tolist() == [b"a"] * count
    assert call.held_bytes == budget.held_bytes
    beside = call.held_bytes - count * (TEXT_OVERHEAD_BYTES + 5)
    assert 0 < beside < 200, "the message is given back, but for its head"
    world.answer(good_answer())
    world.assert_over("OK")


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("claimed", [20_001, 19_999, 2**40])
async def test_texts_that_are_not_as_many_are_refused(world: World, claimed: int) -> None:
    call = world.begin(texts_request(20_000, claimed))
    await settle()
    assert call.refusal is not None
    assert isinstance(call.refusal[0], InvalidRequestError)
    world.assert_over("INVALID_ARGUMENT")


@pytest.mark.usefixtures("short_turns")
async def test_reading_ends_when_the_caller_has_gone(world: World) -> None:
    call = world.begin(texts_request(20_000, 20_000))
    call.leave()
    await settle()
    assert not world.asked
    world.assert_over("CANCELLED")
