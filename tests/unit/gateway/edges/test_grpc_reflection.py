"""Reflection and health as calls on a connection: streams of responses, within limits."""

import sys
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb

from services.gateway.edges import grpc_health, grpc_reflection
from services.gateway.edges.grpc_health import (
    MAX_WATCHES,
    MAX_WATCHES_A_CONNECTION,
    GrpcHealth,
)
from services.gateway.edges.grpc_reflection import (
    ANSWERS_A_LOAN,
    MAX_WAITING,
    SERVICE,
    GrpcReflection,
)
from services.wire.http2.frames import (
    DATA,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    Fault,
    frame,
    reset,
    settings,
)
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.simple_call import SimpleCall
from tests.unit.wire.http2_wire import (
    GREETING,
    Service,
    Wire,
    begin,
    call,
    make_port,
    message,
    wire,
)
from tests.unit.wire.http_wire import settle

INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 3, 5, 8
NO_WINDOW = PREFACE + settings({INITIAL_WINDOW_SIZE: 0})
LIST = message(pb.ServerReflectionRequest(list_services="").SerializeToString())
SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


class Reflecting(Service):
    """Routes every call to reflection."""

    reflection = GrpcReflection((SERVICE, grpc_health.SERVICE))

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[Any] = []

    def route(self, head: GrpcHead) -> None:
        head.open = self.open

    def open(self, *given: Any) -> Any:
        """Opens a call and records it."""
        self.opened.append(self.reflection.open(*given))
        return self.opened[-1]


async def answered(w: Wire, count: int) -> None:
    """Waits until so many questions have answers, of which the first waits for a thread."""
    while len(w.answers()[1].messages if 1 in w.answers() else []) < count:
        await settle()


def services(answer: bytes) -> list[str]:
    found = pb.ServerReflectionResponse.FromString(answer).list_services_response.service
    return [service.name for service in found]


async def test_each_question_has_its_answer() -> None:
    w = wire(Reflecting())
    w.send(begin(1) + frame(DATA, 0, 1, LIST * 3))
    await answered(w, 3)
    assert services(w.answers()[1].messages[0]) == sorted([SERVICE, grpc_health.SERVICE])
    w.send(frame(DATA, 0, 1, LIST))
    await answered(w, 4)
    assert w.answers()[1].status is None
    w.send(frame(DATA, END_STREAM, 1, LIST))
    await answered(w, 5)
    await settle()
    assert (w.answers()[1].status, w.answers()[1].reset) == (0, None)


async def test_end_without_a_question() -> None:
    w = wire(Reflecting())
    w.send(begin(1, flags=END_STREAM))
    assert w.answers()[1].status == 0


@pytest.mark.parametrize(
    ("sent", "words"),
    [(message(b"\xff") * 2, "not a valid message"), (LIST * (MAX_WAITING + 1), "at once")],
)
async def test_questions_that_are_not_taken(sent: bytes, words: str) -> None:
    w = wire(Reflecting())
    w.send(begin(1) + frame(DATA, 0, 1, sent))
    while not w.answers():
        await settle()
    answer = w.answers()[1]
    assert answer.status == INVALID_ARGUMENT
    assert words in answer.words
    await settle()
    assert w.connection.unfinished_bytes == 0


async def test_questions_that_wait_are_kept_as_they_came() -> None:
    """Read, each takes ten times the memory, and 180,000 of strangers took 100 MiB."""
    service = Reflecting()
    w = wire(service)
    w.send(begin(1) + frame(DATA, 0, 1, LIST * MAX_WAITING))
    held = sum(map(sys.getsizeof, service.opened[0].waiting))
    assert held <= w.connection.unfinished_bytes


async def test_answers_that_are_not_taken_are_limited() -> None:
    """A caller that asks on and takes nothing must not fill our memory."""
    service = Reflecting()
    w = wire(service, NO_WINDOW)
    w.send(begin(1))
    asked = 0
    (open_call,) = service.opened
    while not open_call.is_over and asked < 10 * MAX_WAITING:
        w.send(frame(DATA, 0, 1, LIST))
        asked += 1
        while not open_call.is_over and len(open_call.unsent or ()) < asked:
            await settle()
    assert asked <= MAX_WAITING + 1
    w.send(settings({INITIAL_WINDOW_SIZE: 10**6}))
    answer = w.answers()[1]
    assert (answer.status, len(answer.messages)) == (INVALID_ARGUMENT, MAX_WAITING)


async def test_many_questions_lend_the_lock_to_threads_that_run_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lent: list[None] = []
    monkeypatch.setattr(grpc_reflection, "lend_lock", lambda: lent.append(None))
    service = Reflecting()
    w = wire(service)
    w.send(begin(1) + frame(DATA, 0, 1, LIST * 3 * ANSWERS_A_LOAN))
    while service.opened[0].waiting:
        await settle()
    assert len(lent) == 3


async def test_caller_that_leaves_is_not_answered() -> None:
    w = wire(Reflecting())
    w.send(begin(1) + frame(DATA, 0, 1, LIST * 3) + reset(1, Fault.CANCEL))
    await settle()
    w.send(begin(3) + frame(DATA, END_STREAM, 3, LIST))
    while 3 not in w.answers() or not w.answers()[3].ended:
        await settle()
    assert 1 not in w.answers()


# Health.


class Healthy(Service):
    """Routes every call to health."""

    def __init__(self) -> None:
        super().__init__()
        self.health = GrpcHealth(["one"])

    def route(self, head: GrpcHead) -> None:
        if head.path == "/t/Watch":
            head.open = self.health.watch
        else:
            head.open = lambda *args: SimpleCall(self.health.check, *args)


def asked(service: str) -> bytes:
    """Encodes a health request."""
    found: bytes = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    return found


def told(w: Wire, stream: int) -> list[int]:
    """Returns the health responses."""
    messages = w.answers()[stream].messages
    return [health_pb2.HealthCheckResponse.FromString(found).status for found in messages]


@pytest.mark.parametrize("service", ["", "one"])
async def test_check(service: str) -> None:
    desk = Healthy()
    w = wire(desk)
    w.send(call(1, asked(service)))
    desk.health.announce(True)
    w.send(call(3, asked(service)))
    assert [told(w, stream) for stream in (1, 3)] == [[NOT_SERVING], [SERVING]]


@pytest.mark.parametrize(
    ("sent", "status"), [(asked("two"), NOT_FOUND), (b"\xff", INVALID_ARGUMENT)]
)
async def test_check_of_nothing(sent: bytes, status: int) -> None:
    w = wire(Healthy())
    w.send(call(1, sent))
    assert w.answers()[1].status == status


async def test_watch_is_told_what_changes_until_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_health, "MAX_WATCHES", 2)
    desk = Healthy()
    w = wire(desk)
    w.send(call(1, asked(""), "/t/Watch") + call(3, asked("two"), "/t/Watch"))
    for is_ready in (True, True, False):
        desk.health.announce(is_ready)
    assert told(w, 1) == [NOT_SERVING, SERVING, NOT_SERVING]
    assert set(told(w, 3)) == {UNKNOWN}
    w.send(reset(1, Fault.CANCEL))
    w.lose()
    desk.health.announce(True)
    check_that_all_watches_are_free(desk)


def check_that_all_watches_are_free(desk: Healthy) -> None:
    """Opens as many watches as the server may have; at most that of a connection."""
    w = wire(desk)
    for stream in range(1, 2 * grpc_health.MAX_WATCHES, 2):
        w.send(call(stream, asked(""), "/t/Watch"))
        assert len(told(w, stream)) == 1


async def test_watch_of_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_health, "MAX_WATCHES", 1)
    desk = Healthy()
    w = wire(desk)
    w.send(call(1, b"\xff", "/t/Watch"))
    assert w.answers()[1].status == INVALID_ARGUMENT
    check_that_all_watches_are_free(desk)


async def test_watches_are_limited_on_a_connection_and_over_all() -> None:
    desk = Healthy()
    port = make_port(desk)
    full = MAX_WATCHES // MAX_WATCHES_A_CONNECTION
    wires = [Wire(port) for _ in range(full + 1)]
    for w in wires:
        w.send(GREETING)
        for stream in range(1, 2 * MAX_WATCHES_A_CONNECTION + 2, 2):
            w.send(call(stream, asked(""), "/t/Watch"))
        await settle()
    last = 2 * MAX_WATCHES_A_CONNECTION + 1
    assert [told(w, last - 2) for w in wires[:full]] == [[NOT_SERVING]] * full
    assert wires[0].answers()[last].status == RESOURCE_EXHAUSTED
    assert wires[full].answers()[1].status == RESOURCE_EXHAUSTED
    wires[0].send(reset(1, Fault.CANCEL))
    wires[full].send(call(last + 2, asked(""), "/t/Watch"))
    assert told(wires[full], last + 2) == [NOT_SERVING]
