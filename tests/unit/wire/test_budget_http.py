"""Charges of HTTP/1 connections to the byte budget, and their refunds."""

import asyncio
import gc
import gzip
from types import CellType
from typing import Any

import pytest

from services.errors import BufferFullError
from services.telemetry.metrics import Metrics
from services.wire.body import SMALL_BODY_BYTES
from services.wire.byte_budget import ByteBudget
from services.wire.http1.asgi import RESERVE, asgi_opener
from services.wire.http1.port import HttpPort
from tests.unit.wire.http_wire import (
    Echo,
    Wire,
    chunked,
    compression_idle,
    echo_route,
    make_limits,
    on_loop,
    refusals,
    request,
    said,
    settle,
)

LIMIT_BYTES = 1024 * 1024


def make_port(route: Any, limit_bytes: int = LIMIT_BYTES, **limits: Any) -> HttpPort:
    """Creates a port with a small budget; every waiting connection is judged at once."""
    roomy = {"max_request_bytes": 64 * 2**20, **limits}
    budget = ByteBudget(limit_bytes, grace_s=0)
    port = HttpPort(lambda _: route, make_limits(**roomy), Metrics("test"), budget)
    port.tick()
    return port


def head(size: int, **headers: str) -> bytes:
    """The head of a request whose body is to come."""
    return request(body=b"", **headers).replace(b"content-length: 0", b"content-length: %d" % size)


def test_body_that_is_announced_costs_next_to_nothing() -> None:
    async def test() -> None:
        port = make_port(echo_route())
        wires = [Wire(port) for _ in range(20)]
        for w in wires:
            w.send(head(64 * 2**20))
        assert 0 < port.budget.held_bytes < 20 * SMALL_BODY_BYTES
        assert not any(w.output for w in wires)
        for w in wires:
            w.lose()
        assert port.budget.held_bytes == 0
        assert not port.budget.waiting

    on_loop(test)


@pytest.mark.parametrize("as_chunks", [False, True])
def test_bytes_are_charged_as_they_come_and_until_the_answer(as_chunks: bool) -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        w = Wire(port)
        body = b"x" * 150_000
        whole = chunked(body, [], "/held") if as_chunks else request("/held", body)
        for end in (70_000, 100_000):
            w.send(whole[end - 70_000 if end == 70_000 else 70_000 : end])
            assert 60_000 < port.budget.held_bytes < 4 * end + 70_000
        w.send(whole[100_000:])
        assert port.budget.held_bytes == len(body) + route.held[0].head.memory_bytes
        route.held[0].release()
        assert w.answers()[0].body == said(body, "/held")
        assert port.budget.held_bytes == 0

    on_loop(test)


def test_small_requests_are_charged_until_the_answer() -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        w, stays = Wire(port), Wire(port)
        for _ in range(3):
            w.send(request("/held", b"abc"))
            stays.send(request("/held", b"abc"))
        assert port.budget.held_bytes > 0
        for one in (route.held[4], route.held[2], route.held[0]):
            one.release()
        await settle()
        assert len(w.answers()) == 3
        stays.lose()
        assert port.budget.held_bytes == 0

    on_loop(test)


async def fill(port: HttpPort, body: bytes) -> list[Wire]:
    """Fills the budget with held requests, as far as those of this size may."""
    wires = []
    while port.budget.held_bytes + len(body) <= port.budget.small_limit_bytes:
        wires.append(Wire(port))
        wires[-1].send(request("/held", body))
        await settle()
    return wires


def test_full_budget_answers_the_usual_request_and_who_asks_whether_it_lives() -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        await fill(port, b"x" * 60_000)
        usual = Wire(port)
        usual.send(request(body=b"y" * 4000))
        assert usual.answers()[0].status == 200
        while port.budget.held_bytes < LIMIT_BYTES - 100:
            port.budget.take(100)
        refused = Wire(port)
        refused.send(request(body=b"y" * 4000))
        assert refused.answers()[0].status == 503
        route.is_quick = True  # who asks whether the server lives
        alive = Wire(port)
        alive.send(request())
        assert alive.answers()[0].status == 200

    on_loop(test)


@pytest.mark.parametrize("counts_refusals", [False, True])
@pytest.mark.parametrize("size", [60_000, 80_000])
def test_what_comes_out_of_a_small_body_is_held_to_the_budget(
    size: int, counts_refusals: bool
) -> None:
    async def test() -> None:
        route = echo_route()
        route.counts_refusals = counts_refusals
        port = make_port(route)
        zipped = gzip.compress(b"x" * size)
        wires = [Wire(port) for _ in range(30)]
        for w in wires:
            w.send(request("/held", zipped, **{"content-encoding": "gzip"}))
        async with asyncio.timeout(60):
            while len(route.held) + sum(bool(w.output) for w in wires) < len(wires):
                await compression_idle(port)  # a body of several slices takes several turns
        assert port.budget.held_bytes <= LIMIT_BYTES
        assert all(w.answers()[0].status == 503 for w in wires if w.output)
        assert 0 < len(route.held) < len(wires)
        assert refusals(port) == (0 if counts_refusals else len(route.refused)), "counted once"

    on_loop(test)


def test_a_body_that_was_compressed_is_free_with_its_answer() -> None:
    """It does not wait for the garbage collector."""

    async def test() -> None:
        route = echo_route()
        w = Wire(make_port(route))
        w.send(request("/held", gzip.compress(b"x" * 10_000), **{"content-encoding": "gzip"}))
        await settle()
        exchange = route.held.pop()
        exchange.release()
        await settle()
        assert w.answers()[0].status == 200
        assert not [one for one in gc.get_referrers(exchange) if isinstance(one, CellType)]

    gc.disable()
    try:
        on_loop(test)
    finally:
        gc.enable()


def test_requests_in_flight_on_a_connection_hold_few_bytes() -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        w = Wire(port)
        zipped = gzip.compress(b"x" * 60_000)
        for _ in range(10):
            w.send(request("/held", zipped, **{"content-encoding": "gzip"}))
            await settle()
        assert len(route.held) == 2
        while route.held:
            assert port.budget.held_bytes < 3 * 60_000
            route.held.pop(0).release()
            await settle()
        assert len(w.answers()) == 10

    on_loop(test)


def test_full_budget_refuses_a_request_and_keeps_its_connection() -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        second, body = Wire(port), b"x" * 60_000
        await fill(port, body)
        second.send(request(body=body))
        (answer,) = second.answers()
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        assert b"max_buffered_bytes" in answer.body
        assert [type(error) for error in route.refused] == [BufferFullError]
        assert refusals(port) == 1
        for held in route.held:
            held.release()
        await settle()
        second.send(request(body=body))
        assert second.answers()[1].body == said(body)
        assert port.budget.held_bytes == 0

    on_loop(test)


def test_slowest_sender_makes_room_for_honest_ones() -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        slow = [Wire(port) for _ in range(12)]
        for w in slow:
            w.send(head(200_000) + b"x" * 60_000)
            await settle()
        held = port.budget.held_bytes
        honest = Wire(port)
        body = b"y" * 500_000
        honest.send(request(body=body))
        assert honest.answers()[0].body == said(body)
        shed = [w for w in slow if w.output]
        assert 0 < len(shed) < len(slow)
        assert {w.answers()[0].status for w in shed} == {503}
        assert b"bytes/s" in shed[0].answers()[0].body
        assert port.budget.held_bytes < held

    on_loop(test)


def test_peer_that_does_not_read_is_charged_and_given_up() -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        w = Wire(port)
        w.send(request("/held", b"a") * 3)
        w.unsent_bytes = 200_000
        w.connection.pause_writing()
        assert port.budget.held_bytes > 200_000
        w.unsent_bytes = 1000
        w.connection.resume_writing()
        assert port.budget.held_bytes < 10_000
        w.unsent_bytes = port.budget.share_bytes + 1
        w.connection.pause_writing()
        assert not port.metrics.refusals.labels("UnreadAnswersError").value
        route.held[0].release()
        await settle()
        assert w.aborted
        assert refusals(port) == 1
        assert port.budget.held_bytes == 0

    on_loop(test)


def test_what_a_sweep_finds_unread_is_charged() -> None:
    async def test() -> None:
        port = make_port(echo_route())
        w = Wire(port)
        w.send(request())
        w.unsent_bytes = 5000
        w.connection.sweep()
        assert port.budget.held_bytes == 5000
        w.unsent_bytes = 0
        w.connection.sweep()
        assert port.budget.held_bytes == 0

    on_loop(test)


class Little(Echo):
    """Reads a few KiB."""

    __slots__ = ()

    def body_limit(self, max_bytes: int) -> int:
        """Behaves as the health route."""
        return min(SMALL_BODY_BYTES, max_bytes)


@pytest.mark.parametrize(
    "sent",
    [
        head(64 * 2**20),
        head(64 * 2**20, expect="100-continue"),
        chunked(b"x" * 10_000, [])[:200] + b"x" * 9000,
        request(body=gzip.compress(bytes(10**6)), content_encoding="gzip"),
    ],
    ids=["announced", "expecting", "chunks", "bomb"],
)
def test_paths_without_bodies_refuse_them_at_the_head(sent: bytes) -> None:
    async def test() -> None:
        route = type("Littles", (Little,), {"__slots__": (), "held": [], "refused": []})
        w = Wire(make_port(route))
        w.send(sent)
        for _ in range(100):
            await settle()
        (answer,) = w.answers()
        assert answer.status == 413
        assert b"send less" in answer.body

    on_loop(test)


@pytest.mark.parametrize("is_room_made", [True, False])
def test_request_whose_head_came_in_pieces_does_not_make_room_for_itself(
    is_room_made: bool,
) -> None:
    """It had a refusal behind its answer, which the peer took for that of its next request."""

    async def test() -> None:
        port = make_port(echo_route())
        other = Wire(port)
        if is_room_made:
            other.send(request("/echo", b"o" * 100_000)[:60_000])
        w, sent = Wire(port), request("/echo", b"a" * 40_000)
        w.send(sent[:20])
        others_bytes = LIMIT_BYTES - port.budget.held_bytes - 20_000
        port.budget.held_bytes += others_bytes
        w.send(sent[20:])
        await settle()
        assert [answer.status for answer in w.answers()] == [200 if is_room_made else 503]
        w.lose()
        other.lose()
        assert port.budget.held_bytes == others_bytes

    on_loop(test)


@pytest.mark.parametrize("cut", [0, 100])
def test_request_in_chunks_is_refused_when_there_is_no_room(cut: int) -> None:
    async def test() -> None:
        port = make_port(echo_route())
        w, sent = Wire(port), chunked(b"b" * 50_000, [50_000])
        w.send(sent[:cut])
        port.budget.held_bytes += LIMIT_BYTES
        w.send(sent[cut:])
        await settle()
        assert [answer.status for answer in w.answers()] == [503]
        w.lose()
        assert port.budget.held_bytes == LIMIT_BYTES

    on_loop(test)


async def test_work_that_outlives_its_caller_stays_charged() -> None:
    go_on = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        scope[RESERVE](len(body))
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    budget = ByteBudget(10**6)
    opener = asgi_opener(application, reads_bodies=True)
    port = HttpPort(lambda head: opener, make_limits(), Metrics("test"), budget)
    port.tick()
    wire = Wire(port)
    wire.send(request("/jobs", b"x" * 5000))
    await asyncio.sleep(0)
    wire.connection.connection_lost(None)
    assert budget.held_bytes >= 10_000
    go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert budget.held_bytes == 0
