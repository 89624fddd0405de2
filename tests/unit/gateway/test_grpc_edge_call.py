"""One inference between its thread and the loop: every order of beginning, answer and departure.

Nothing here is timed: the loop's letters are held back, and delivered when the test says so.
"""

import threading
from collections.abc import Callable
from typing import Any, cast

import grpc
import numpy as np
import pytest

from protos import open_inference_pb2 as pb
from services.errors import (
    InvalidRequestError,
    QueueFullError,
    ServingError,
    UnknownModelError,
)
from services.gateway.admission import InferCall
from services.gateway.grpc_infer import WAY_BACK_S, InferHandler
from services.gateway.grpc_replies import parser
from services.gateway.scheduling import time_for_work
from services.queueing.memory_queue import Outcome
from services.queueing.records import InferReply, Lane

LONG_S = 3600.0


class Letters:
    """A mailbox whose letters the test delivers itself."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []
        self._came = threading.Condition()

    def post(self, letter: Callable[[], None]) -> None:
        with self._came:
            self.held.append(letter)
            self._came.notify_all()

    def wait_for(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.held) >= count, timeout=10)

    def deliver(self) -> None:
        while self.held:
            self.held.pop(0)()


class Aborted(Exception):
    """What a context raises to end a call."""


class Context:
    """A call as grpcio shows it to a handler."""

    def __init__(self, remaining_s: float = LONG_S, over: bool = False) -> None:
        self._remaining_s = remaining_s
        self._over = over
        self.callbacks: list[Callable[[], None]] = []
        self.trailing: dict[str, str] = {}
        self.status: tuple[grpc.StatusCode, str] | None = None

    def time_remaining(self) -> float:
        return self._remaining_s

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("x-request-id", "from-metadata")]

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if not self._over:
            self.callbacks.append(callback)
        return not self._over

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self.trailing = dict(metadata)

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.status = code, details
        raise Aborted

    def end(self) -> None:
        """What grpcio does when a call is over, for whatever reason."""
        for callback in self.callbacks:
            callback()


class Record:
    def __init__(self, given_id: str) -> None:
        self.closed: list[str] = []
        self.request_id = given_id
        self.trace = None

    def close(self, code: str, reply: InferReply) -> None:
        assert isinstance(reply, InferReply)
        self.closed.append(code)

    def close_failed(self, code: str, error: ServingError) -> None:
        assert code != "OK"
        assert isinstance(error, ServingError)
        self.closed.append(code)


class Entry:
    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class World:
    """A handler among fakes; `infer` starts a call in a thread, as grpcio would."""

    def __init__(self, max_calls: int = 8) -> None:
        self.letters = Letters()
        self.tracer = self.sampler = None
        self.records: list[Record] = []
        self.asked: list[tuple[InferCall, Callable[[Outcome], None]]] = []
        self.entry = Entry()
        self.at_once: Outcome | BaseException | None = None
        self.handler = InferHandler(
            cast(Any, self), cast(Any, self), cast(Any, self.letters), max_calls
        )

    def open(
        self, protocol: str, given_id: str, model: str, version: str, traceparent: str
    ) -> Record:
        """The ledger's part."""
        assert (protocol, traceparent) == ("grpc", "")
        self.records.append(Record(given_id))
        return self.records[-1]

    def infer(self, call: InferCall, answered: Callable[[Outcome], None]) -> Entry:
        """Admission's part."""
        self.asked.append((call, answered))
        if isinstance(self.at_once, BaseException):
            raise self.at_once
        if self.at_once is not None:
            answered(self.at_once)
        return self.entry

    def answer(self, outcome: Outcome) -> None:
        self.asked[-1][1](outcome)

    def start(self, context: Context, request: Any = None, **fields: Any) -> "Call":
        """A call that has posted its first letter."""
        letters = len(self.letters.held)
        call = Call(self.handler, context, request or good_request(**fields))
        self.letters.wait_for(letters + 1)
        return call

    def assert_over(self, *codes: str) -> None:
        """Every call had one outcome, and nothing is left of any."""
        self.letters.deliver()
        assert [record.closed for record in self.records] == [[code] for code in codes]
        assert self.handler.running == 0


class Call:
    """A handler that runs in its own thread."""

    def __init__(self, handler: InferHandler, context: Context, request: Any) -> None:
        self.response: pb.ModelInferResponse | None = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.response = handler(request, cast(Any, context))
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> pb.ModelInferResponse | None:
        """The response, or None for a call that was aborted."""
        self._thread.join(timeout=10)
        assert not self.waits, "the thread was never let go"
        if self.error is not None and not isinstance(self.error, Aborted):
            raise self.error
        return self.response


def good_request(**fields: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m", **fields)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
    return request


def good_answer() -> InferReply:
    return InferReply(
        lane=Lane("m", 1),
        outputs={"y": np.array([[3, 4]], np.float32)},
        datatypes={"y": "FP32"},
        batch_rows=1,
        queue_s=0.0,
        execution_s=0.0,
    )


@pytest.fixture
def world() -> World:
    return World()


def test_answer(world: World) -> None:
    context = Context()
    call = world.start(context, id="mine")
    world.letters.deliver()
    assert call.waits
    assert world.handler.running == 1
    world.answer(good_answer())
    response = call.result()
    assert response is not None
    assert (response.model_version, response.id) == ("1", "mine")
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [3, 4]
    assert context.trailing == {"x-request-id": "mine"}
    context.end()
    assert not world.letters.held, "an answered call woke the loop again"
    world.assert_over("OK")
    assert not world.entry.cancelled


def test_answer_before_admission_returns(world: World) -> None:
    world.at_once = good_answer()
    context = Context()
    call = world.start(context)
    world.letters.deliver()
    assert call.result() is not None
    context.end()
    world.assert_over("OK")
    assert not world.entry.cancelled


def test_caller_leaves_while_it_waits(world: World) -> None:
    context = Context()
    call = world.start(context)
    world.letters.deliver()
    context.end()
    call.result()
    assert world.entry.cancelled == 0, "cancelled outside the loop"
    world.assert_over("CANCELLED")
    assert world.entry.cancelled == 1


def test_caller_leaves_before_the_loop_saw_it(world: World) -> None:
    context = Context()
    call = world.start(context)
    context.end()
    call.result()
    world.assert_over("CANCELLED")
    assert world.entry.cancelled == len(world.asked) == 1


def test_departure_that_overtakes_the_beginning(world: World) -> None:
    context = Context()
    call = world.start(context)
    context.end()
    call.result()
    world.letters.held.reverse()
    world.assert_over("CANCELLED")
    assert not world.asked, "work was begun for a caller that had gone"


def test_call_that_was_over_before_it_began(world: World) -> None:
    call = world.start(Context(over=True))
    call.result()
    world.assert_over("CANCELLED")
    assert not world.asked


def test_departure_that_meets_the_answer(world: World) -> None:
    """grpcio reports the end while the answer is on its way: the answer counts."""
    context = Context()
    call = world.start(context)
    world.letters.deliver()
    context.end()
    world.answer(good_answer())
    world.letters.deliver()
    call.result()
    world.assert_over("OK")
    assert not world.entry.cancelled


def test_thread_is_let_go_although_the_loop_does_nothing(world: World) -> None:
    context = Context()
    call = world.start(context)
    context.end()
    call.result()
    assert len(world.letters.held) == 2


@pytest.mark.parametrize(
    ("remaining_s", "code"),
    [
        (0.0, "DEADLINE_EXCEEDED"),
        (0.004, "DEADLINE_EXCEEDED"),
        (LONG_S, "CANCELLED"),
        (1e10, "CANCELLED"),
    ],
)
def test_out_of_time_or_cancelled(world: World, remaining_s: float, code: str) -> None:
    context = Context(remaining_s)
    call = world.start(context)
    world.letters.deliver()
    context.end()
    call.result()
    world.assert_over(code)


@pytest.mark.parametrize("at_once", [True, False])
def test_refusal_that_a_retry_may_cure(world: World, at_once: bool) -> None:
    context = Context()
    error = QueueFullError("full")
    world.at_once = error if at_once else None
    call = world.start(context)
    world.letters.deliver()
    if not at_once:
        world.answer(error)
    call.result()
    assert context.status == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert context.trailing == {
        "x-request-id": "from-metadata",
        "retry-after": "1",
        "grpc-retry-pushback-ms": "1000",
    }
    context.end()
    world.assert_over("RESOURCE_EXHAUSTED")


def test_refusal_that_no_retry_cures(world: World) -> None:
    context = Context()
    world.at_once = UnknownModelError("who?")
    call = world.start(context)
    world.letters.deliver()
    call.result()
    assert context.status == (grpc.StatusCode.NOT_FOUND, "who?")
    assert context.trailing == {"x-request-id": "from-metadata"}
    world.assert_over("NOT_FOUND")


def test_fault_of_our_own(world: World, caplog: pytest.LogCaptureFixture) -> None:
    context = Context()
    world.at_once = ZeroDivisionError("secret")
    call = world.start(context)
    world.letters.deliver()
    call.result()
    assert context.status is not None
    assert context.status[0] is grpc.StatusCode.INTERNAL
    assert "secret" not in context.status[1]
    assert "secret" in caplog.text
    world.assert_over("INTERNAL")


def test_message_that_cannot_be_read_is_counted(world: World) -> None:
    broken = parser(pb.ModelInferRequest)(b"\x0a\x02\xff\xfe")
    assert isinstance(broken, InvalidRequestError)
    context = Context()
    call = world.start(context, broken)
    world.letters.deliver()
    call.result()
    assert context.status is not None
    assert "not a valid message" in context.status[1]
    world.assert_over("INVALID_ARGUMENT")
    assert not world.asked


def test_tensors_that_cannot_be_read(world: World) -> None:
    request = good_request()
    request.inputs[0].shape[:] = [1, 3]
    context = Context()
    call = world.start(context, request)
    world.letters.deliver()
    call.result()
    assert context.status is not None
    assert context.status[0] is grpc.StatusCode.INVALID_ARGUMENT
    world.assert_over("INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("timeout_us", "remaining_s", "timeout_s"),
    [(None, 7.0, 7.0), (0, 7.0, 7.0), (2_500_000, 7.0, 2.5), (9_000_000, 7.0, 7.0)],
)
def test_smaller_of_both_timeouts(
    world: World, timeout_us: int | None, remaining_s: float, timeout_s: float
) -> None:
    request = good_request()
    if timeout_us is not None:
        request.parameters["timeout"].int64_param = timeout_us
    call = world.start(Context(remaining_s), request)
    world.letters.deliver()
    assert world.asked[0][0].timeout_s == time_for_work(timeout_s, WAY_BACK_S)
    world.answer(good_answer())
    call.result()


def test_priority_and_names_reach_admission(world: World) -> None:
    request = good_request(model_version="3")
    request.parameters["priority"].uint64_param = 2
    request.outputs.add(name="y")
    call = world.start(Context(), request)
    world.letters.deliver()
    asked = world.asked[0][0]
    assert (asked.model, asked.version, asked.priority, list(asked.outputs)) == ("m", "3", 2, ["y"])
    assert asked.request_id == "from-metadata"
    world.answer(good_answer())
    call.result()


def test_one_call_too_many() -> None:
    world = World(max_calls=2)
    contexts = [Context() for _ in range(4)]
    calls = [world.start(context) for context in contexts]
    world.letters.deliver()
    assert len(world.asked) == 2
    for call in calls[2:]:
        call.result()
    for context in contexts[2:]:
        assert context.status is not None
        assert context.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_grpc_calls" in context.status[1]
    world.asked[0][1](good_answer())
    again = world.start(Context())  # one has left, so one more fits
    world.letters.deliver()
    assert len(world.asked) == 3
    for _, answered in world.asked[1:]:
        answered(good_answer())
    for call in (*calls[:2], again):
        assert call.result() is not None
    assert world.handler.running == 0
