"""Charges of gRPC connections to the byte budget, and their refunds."""

import gzip
from functools import partial
from typing import Any, cast

from services.telemetry.metrics import Metrics
from services.wire.body import SMALL_BODY_BYTES
from services.wire.byte_budget import ByteBudget
from services.wire.http2.frames import (
    DATA,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    RST_STREAM,
    frame,
    settings,
    window_update,
)
from services.wire.http2.grpc_connection import (
    CALL_BYTES,
    MAX_SHED_CALLS,
    MAX_SILENT_CALLS,
)
from services.wire.http2.grpc_port import DROPPED_A_TURN, GrpcPort
from services.wire.http2.simple_call import SimpleCall
from tests.unit.wire import http2_wire
from tests.unit.wire.http2_wire import (
    GREETING,
    Service,
    Wire,
    message,
)
from tests.unit.wire.http_wire import make_limits, refusals, settle

LIMIT_BYTES = 1024 * 1024
begin, call = (partial(of, x_request_id="1") for of in (http2_wire.begin, http2_wire.call))
"""Calls with an id of their own: the connection does not cache their headers, which it charges."""
RESOURCE_EXHAUSTED = 8
NO_WINDOW = PREFACE + settings({INITIAL_WINDOW_SIZE: 0})


def sent_of(stream: int, content: bytes) -> bytes:
    """DATA in frames of 16 KiB."""
    pieces = range(0, len(content), 16_384)
    return b"".join(frame(DATA, 0, stream, content[at : at + 16_384]) for at in pieces)


def make_port(service: Service | None = None, **limits: Any) -> GrpcPort:
    """Creates a port with a small budget; every waiting connection is judged at once."""
    roomy = {"max_request_bytes": 64 * 2**20, **limits}
    budget = ByteBudget(LIMIT_BYTES, grace_s=0)
    port = GrpcPort((service or Service()).route, make_limits(**roomy), Metrics("test"), budget)
    port.tick()
    return port


def connect(port: GrpcPort, greeting: bytes = GREETING) -> Wire:
    """Opens a connection to it."""
    w = Wire(port)
    w.send(greeting)
    return w


async def test_messages_are_charged_as_they_come_and_until_the_answer() -> None:
    service = Service()
    port = make_port(service)
    w = connect(port)
    sent = sent_of(1, message(b"x" * 100_000))
    w.send(begin(1, "/t/Held") + sent[:50_000])
    assert 50_000 < port.budget.held_bytes < 82_000, "its memory grows by steps"
    assert w.connection in port.budget.waiting
    w.send(sent[50_000:] + frame(DATA, END_STREAM, 1))
    assert port.budget.held_bytes == 100_000
    assert w.connection not in port.budget.waiting
    service.held[0].release()
    await settle()
    w.send(window_update(0, 2**20) + window_update(1, 2**20))
    assert w.answers()[1].status == 0
    assert port.budget.held_bytes == 0
    w.lose()
    assert port.budget.held_bytes == 0


async def test_calls_that_are_broken_off_give_their_bytes_back() -> None:
    service = Service()
    port = make_port(service)
    w = connect(port)
    for stream in (1, 3, 5):
        w.send(begin(stream, "/t/Held") + sent_of(stream, message(b"x" * 10_000)))
    w.send(frame(DATA, END_STREAM, 1) + frame(DATA, 0, 5, b"\x00" * 3))
    w.send(frame(RST_STREAM, 0, 1, bytes(4)) + frame(RST_STREAM, 0, 3, bytes(4)))
    assert port.budget.held_bytes == 10_003 + 10_003 // 4, "the third call says nothing more"
    w.lose()
    assert port.budget.held_bytes == 0
    assert not port.budget.waiting


async def test_full_budget_refuses_calls() -> None:
    service = Service()
    port = make_port(service)
    first, second = connect(port), connect(port)
    size = 15_000
    for stream in range(1, 2 * (LIMIT_BYTES // size) + 5, 2):
        first.send(call(stream, b"x" * size, "/t/Held"))
        await settle()
    second.send(call(1, b"y" * size))
    assert second.answers()[1].status == RESOURCE_EXHAUSTED
    assert "max_buffered_bytes" in second.answers()[1].words
    assert refusals(port) >= 1
    for one in service.held:
        one.release()
    await settle()
    second.send(call(3, b"y" * 100))
    assert second.answers()[3].status == 0


async def test_slowest_callers_make_room_and_keep_their_other_calls() -> None:
    service = Service()
    port = make_port(service)
    slow = [connect(port) for _ in range(10)]
    for w in slow:
        w.send(call(1, b"z", "/t/Held") + begin(3) + sent_of(3, message(b"x" * 80_000))[:70_000])
        await settle()
    honest = connect(port)
    honest.send(begin(1, "/t/Held") + sent_of(1, message(b"y" * 200_000)))
    honest.send(frame(DATA, END_STREAM, 1))
    await settle()
    assert len(service.held) == 11
    shed = [w for w in slow if 3 in w.answers()]
    assert 0 < len(shed) < 10
    assert {w.answers()[3].status for w in shed} == {RESOURCE_EXHAUSTED}
    for one in service.held[:10]:
        one.release()
    await settle()
    assert all(w.answers()[1].status == 0 for w in slow)


async def test_answers_wait_while_the_peer_reads_nothing_and_are_charged() -> None:
    service = Service()
    port = make_port(service)
    w = connect(port, PREFACE + settings({INITIAL_WINDOW_SIZE: 2**20}) + window_update(0, 2**20))
    w.send(call(1, b"x" * 10_000, "/t/Held"))
    w.connection.pause_writing()
    written = len(w.output)
    service.held[0].release()
    assert len(w.output) < written + 200, "no DATA"
    assert port.budget.held_bytes >= 20_000, "the message and its answer"
    w.connection.resume_writing()
    assert w.answers()[1].status == 0
    assert port.budget.held_bytes == 0


async def test_peer_with_no_window_is_bounded_while_its_calls_run() -> None:
    service = Service()
    port = make_port(service)
    w = connect(port, NO_WINDOW)
    for stream in range(1, 201, 2):
        w.send(call(stream, b"x" * 8_000, "/t/Held"))
        await settle()
    held = list(service.held)
    assert len(held) == 100
    for one in held:
        one.release()
    await settle()
    assert port.budget.held_bytes <= LIMIT_BYTES
    beside = connect(port)
    beside.send(call(1, b"y" * 1000))
    assert beside.answers()[1].status == 0


async def test_silent_calls_are_charged_once_they_are_many() -> None:
    port = make_port()
    w = connect(port)
    count = MAX_SILENT_CALLS + DROPPED_A_TURN
    for stream in range(1, 2 * count + 1, 2):
        w.send(begin(stream))
        await settle()
    assert port.budget.held_bytes == 0
    w.connection.sweep()
    assert port.budget.held_bytes == count * CALL_BYTES
    assert w.connection in port.budget.waiting
    w.lose()
    assert port.budget.held_bytes > 0, "calls of a lost connection are dropped in later turns"
    for _ in range(count):
        await settle()
    assert port.budget.held_bytes == 0
    assert not port.budget.waiting


async def test_connection_with_many_calls_frees_their_memory_when_it_makes_room() -> None:
    port = make_port()
    slow, count = connect(port), 2 * MAX_SHED_CALLS
    for stream in range(1, 2 * count, 2):
        slow.send(begin(stream) + sent_of(stream, message(b"x" * 3_000)[:-1]))
        await settle()
    assert port.budget.held_bytes > count * 3_000
    other = connect(port)
    other.send(begin(1) + sent_of(1, message(b"y" * (LIMIT_BYTES - count * 3_000))[:-1]))
    assert slow.is_closing()
    assert slow.connection.unfinished_bytes == 0, "not in later turns: others take the room now"


async def test_little_messages_are_limited_where_no_more_is_needed() -> None:
    class Little(Service):
        """Takes a few words."""

        def route(self, head: Any) -> None:
            super().route(head)
            head.most_bytes = SMALL_BODY_BYTES

    w = connect(make_port(Little()))
    w.send(begin(1) + sent_of(1, message(b"x" * 9000)))
    assert "8192 bytes" in w.answers()[1].words
    bomb = gzip.compress(bytes(10**6))
    w.send(begin(3, grpc_encoding="gzip") + sent_of(3, message(bomb, 1)))
    assert "8192 bytes" in w.answers()[3].words


async def test_call_without_work_gives_its_charge_back_when_its_caller_leaves() -> None:
    port = make_port()
    connection = Wire(port).connection
    call = SimpleCall(lambda *_: None, connection, cast(Any, None), 1)
    port.budget.take(5000)
    call.held_bytes = 5000
    connection.release(call)
    assert port.budget.held_bytes == 0


async def test_work_that_outlives_its_caller_stays_charged() -> None:
    port = make_port()
    connection = Wire(port).connection
    job = SimpleCall(lambda *_: None, connection, cast(Any, None), 1)
    port.budget.take(5000)
    job.held_bytes = 5000
    with job.working():
        job.is_over = True
        connection.release(job)
        assert port.budget.held_bytes == 5000
    assert port.budget.held_bytes == 0
