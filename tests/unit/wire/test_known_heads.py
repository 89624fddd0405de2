"""Heads that a port knows, and those of requests in flight: bounded by the memory they take."""

import sys
import tracemalloc

from services.wire.http1.port import MAX_KNOWN_BYTES
from tests.unit.wire.http_wire import (
    MAX_REQUEST_BYTES,
    echo_route,
    on_loop,
    request,
    said,
    settle,
    wire,
)


def test_known_heads_are_bounded_and_not_taken_for_others() -> None:
    async def test() -> None:
        w = wire()
        port = w.connection.port
        for number in range(1100):
            w.send(request(f"/{number}", b"a"))
            await settle()
        assert len(port.heads) == 1024
        before = set(port.heads)
        w.send(request("/0", b"a", x_request_id="1") + request("/0", b"a" * MAX_REQUEST_BYTES))
        await settle()
        w.send(request("/long", b"", x="y" * 8000) + b"\r\n" + request("/lines"))
        await settle()
        learnt = {request("/0", b"a" * MAX_REQUEST_BYTES).rstrip(b"a"), request("/lines")}
        assert set(port.heads) - before == learnt
        w.send(request("/5", b"b") + request("/5", b"bc"))
        await settle()
        assert [a.body for a in w.answers()][-2:] == [said(b"b", "/5"), said(b"bc", "/5")]

    on_loop(test)


def many_headers(number: int) -> bytes:
    fields = b"".join(b"%x: 0\r\n" % (4096 + field) for field in range(48))
    return b"POST /%d HTTP/1.1\r\nhost: x\r\n%b\r\n" % (number, fields)


def test_known_heads_are_bounded_by_the_memory_they_take() -> None:
    async def test() -> None:
        w = wire()
        tracemalloc.start()
        for number in range(2000):
            w.send(many_headers(number))
            await settle()
            w.written.clear()
        (taken_bytes, _), known = tracemalloc.get_traced_memory(), w.connection.port.heads
        tracemalloc.stop()
        assert 300 < len(known) < 1024
        assert taken_bytes < 1.25 * MAX_KNOWN_BYTES
        w.send(many_headers(1999))
        assert len(w.answers()) == 1

    on_loop(test)


def test_connection_forgets_a_head_that_the_port_has_forgotten() -> None:
    async def test() -> None:
        w = wire()
        for _ in range(2):  # the second is taken as it was seen before
            w.send(request("/old"))
        ((head, _),) = w.connection.port.heads.values()
        before = sys.getrefcount(head)
        w.connection.port.heads.clear()
        w.connection.sweep()
        assert sys.getrefcount(head) == before - 2

    on_loop(test)


def test_head_of_a_request_in_flight_is_charged_with_its_objects() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        budget = w.connection.port.budget
        fields = b"".join(b"%x: 0\r\n" % (4096 + field) for field in range(240))
        w.send(b"POST /held HTTP/1.1\r\nhost: x\r\n%b\r\n" % fields)
        assert budget.held_bytes > 240 * 140
        route.held[0].release()
        assert budget.held_bytes == 0
        w.send(b"POST /held HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n%b\r\n1" % fields)
        assert budget.held_bytes > 240 * 140
        w.lose()
        assert budget.held_bytes == 0

    on_loop(test)
