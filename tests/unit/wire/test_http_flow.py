"""One connection over time: back-pressure, timeouts, stops. No network."""

import gzip
from typing import Any

import pytest

from services.wire.http1.exchange import Exchange
from services.wire.open_port import LINGER_S
from tests.unit.wire.http_wire import (
    Echo,
    Wire,
    chunked,
    echo_route,
    make_port,
    on_loop,
    refused,
    request,
    said,
    settle,
    wire,
)

HELD = request("/held", b"wait")


# Bodies that are compressed, or waited for.


def test_compressed_body_arrives_plain() -> None:
    async def test() -> None:
        w = wire()
        w.send(request(body=gzip.compress(b"plain"), content_encoding="gzip"))
        w.send(request(body=b"broken", content_encoding="gzip") + request(body=b"next"))
        first, second, third = w.answers()
        assert first.body == said(b"plain")
        assert (second.status, second.header("connection")) == (400, None)
        assert third.body == said(b"next")

    on_loop(test)


EXPECTING = request(body=b"late", expect="100-continue")
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_caller_that_waits_is_told_to_continue() -> None:
    async def test() -> None:
        w = wire()
        w.send(EXPECTING[:-4])
        assert w.output == INTERIM
        w.send(b"late")
        assert w.output.startswith(INTERIM)
        w.written = w.written[1:]
        assert w.answers()[0].body == said(b"late")

    on_loop(test)


@pytest.mark.parametrize("sent", [EXPECTING, EXPECTING.replace(b"1.1", b"1.0")[:-1]])
def test_no_interim_answer_for_those_who_do_not_wait_or_know(sent: bytes) -> None:
    async def test() -> None:
        w = wire()
        w.send(sent)
        assert INTERIM not in w.output

    on_loop(test)


def test_interim_answer_does_not_overtake() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD + EXPECTING[:-4])
        assert w.output == b""
        route.held[0].release()
        await settle()
        assert w.output.endswith(INTERIM)
        assert w.reading
        w.send(b"late")
        assert w.output.endswith(said(b"late"))

    on_loop(test)


def test_refused_body_is_not_asked_for() -> None:
    async def test() -> None:
        w = wire(max_request_bytes=3)
        with refused(w, 413, "over 3 bytes"):
            w.send(EXPECTING[:-4])
        assert INTERIM not in w.output

    on_loop(test)


# A peer that does not read, and the timer.


def test_peer_that_does_not_read_is_not_read_from() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD)
        w.connection.pause_writing()
        assert not w.reading
        w.send(HELD)
        assert len(route.held) == 1
        w.connection.resume_writing()
        await settle()
        assert len(route.held) == 2
        # Paused in the middle of what was read already.
        w.connection.pause_writing()
        w.connection.resume_writing()
        assert w.reading

    on_loop(test)


def at(w: Wire, seconds: float) -> None:
    """The timer looks at the connection that much later than now."""
    port = w.connection.port
    port.tick()
    port.now += seconds
    w.connection.sweep()


def test_idle_connection_is_closed() -> None:
    async def test() -> None:
        for sent in (b"", request()):
            w = wire(keep_alive_timeout_s=10)
            w.send(sent)
            at(w, 9.9)
            assert not w.is_closing()
            at(w, 10.1)
            assert w.closed

    on_loop(test)


def test_request_in_flight_is_not_idle() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route, keep_alive_timeout_s=10, receive_timeout_s=5)
        w.send(HELD)
        at(w, 1000)
        assert not w.is_closing()
        route.held[0].release()
        assert len(w.answers()) == 1

    on_loop(test)


@pytest.mark.parametrize(
    "start",
    [b"GET", b"\r\nG", b"GET / HTTP/1.1\r\n", request(body=b"abc")[:-1], chunked(b"abc", [])[:-1]],
)
def test_request_that_does_not_arrive(start: bytes) -> None:
    async def test() -> None:
        w = wire(receive_timeout_s=5)
        w.send(request())
        w.send(start)
        at(w, 4.9)
        assert len(w.answers()) == 1
        with refused(w, 408, "within 5 s"):
            at(w, 5.1)

    on_loop(test)


def test_drops_do_not_prolong_the_time() -> None:
    async def test() -> None:
        w = wire(receive_timeout_s=5)
        w.send(b"GET / HT")
        at(w, 4)
        w.send(b"TP/1.1\r\n")
        with refused(w, 408, "within 5 s"):
            at(w, 5.1)

    on_loop(test)


def test_refused_peer_that_does_not_hang_up() -> None:
    async def test() -> None:
        w = wire()
        w.send(b"nonsense\r\n\r\n")
        at(w, LINGER_S - 0.1)
        assert not w.aborted
        at(w, LINGER_S + 0.1)
        assert w.aborted

    on_loop(test)


@pytest.mark.parametrize("last", [False, True])
def test_peer_must_read_something_in_time(last: bool) -> None:
    async def test() -> None:
        w = wire(receive_timeout_s=5, keep_alive_timeout_s=1)
        w.send(request(connection="close" if last else "keep-alive"))
        w.unsent_bytes = 100_000
        w.connection.pause_writing()
        w.closed = False  # what was written has not gone out
        at(w, 4.9)
        w.unsent_bytes = 50_000
        at(w, 5.1)
        at(w, 10)
        assert not w.aborted
        at(w, 10.2)
        assert w.aborted

    on_loop(test)


# A stop.


def test_stop_closes_what_is_idle_and_answers_what_is_not() -> None:
    async def test() -> None:
        route = echo_route()
        port = make_port(route)
        idle, busy, piped, arriving = (Wire(port) for _ in range(4))
        busy.send(HELD)
        piped.send(HELD * 2)
        arriving.send(request(body=b"abc")[:-1])
        port.stopping = True
        for w in (idle, busy, piped, arriving):
            w.connection.close_if_idle()
        assert [w.closed for w in (idle, busy, piped, arriving)] == [True, False, False, False]
        for exchange in reversed(route.held):
            exchange.release()
        arriving.send(b"c")
        await settle()
        for w, count in ((busy, 1), (piped, 2), (arriving, 1)):
            headers = [answer.header("connection") for answer in w.answers()]
            assert headers == [None] * (count - 1) + ["close"]
            assert w.closed

    on_loop(test)


def test_request_after_the_last_answer_of_a_stop_is_not_begun() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD)
        w.connection.port.stopping = True
        route.held[0].release()
        w.send(HELD)
        assert len(route.held) == 1

    on_loop(test)


def test_large_parts_are_not_copied() -> None:
    part = b"x" * 100_000

    class Large(Echo):
        def release(self) -> None:
            self.respond(200, b"", [b"head", memoryview(part)])

    async def test() -> None:
        w = wire(Large)
        kept: list[Any] = []
        w.writelines = kept.extend  # type: ignore[method-assign, assignment]
        w.send(request())
        assert [type(piece) for piece in kept] == [bytes, bytes, memoryview]
        assert kept[2].obj is part

    on_loop(test)


def test_exchange_must_say_what_it_does() -> None:
    async def test() -> None:
        with pytest.raises(NotImplementedError):
            wire(Exchange).send(request())

    on_loop(test)
