"""One connection: framing, order, limits and flow, on bytes cut anywhere. No network."""

import asyncio
import itertools
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.wire.http1.charges import MAX_PIPELINED
from services.wire.http1.head import MAX_HEAD_BYTES
from services.wire.loop_turns import READ_BYTES, READ_BYTES_AT_ONCE, WORK_A_TURN_US
from tests.unit.wire.http_wire import (
    MAX_REQUEST_BYTES,
    Wire,
    chunked,
    echo_route,
    make_port,
    on_loop,
    refusals,
    refused,
    request,
    said,
    settle,
    wire,
)

HELD = request("/held", b"wait")


# Framing.

KNOWN = b"GET /g?q HTTP/1.1\r\nhost: x\r\n\r\n"
BODIES = st.one_of(
    st.binary(max_size=50), st.sampled_from([b"x" * 40_000, b"x" * 70_000, KNOWN, KNOWN * 2])
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draws a request's bytes, and its expected response."""
    body = draw(BODIES)
    match draw(st.sampled_from(["sized", "chunked", "get", "lines", "held"])):
        case "sized":
            return request("/echo", body), said(body)
        case "chunked":
            sizes = draw(st.lists(st.integers(1, 40_000), max_size=4))
            return chunked(body, sizes, trailer=draw(st.sampled_from([b"", b"a: b\r\n"]))), said(
                body
            )
        case "get":
            return KNOWN, said(b"", "/g", "GET", "q")
        case "lines":
            return b"\r\n" + request("/after", body), said(body, "/after")
        case _:
            return request("/held", body), said(body, "/held")


@pytest.mark.parametrize("is_chunked", [True, False])
def test_body_that_is_itself_a_request_is_a_body(is_chunked: bool) -> None:
    """Wherever it is cut: else who sends through a proxy speaks in the name of others."""
    inner = request("/inner", b"x")
    outer = chunked(inner, [len(inner)], path="/outer") if is_chunked else request("/outer", inner)
    begin = outer.index(inner)

    async def test() -> None:
        for first in (begin - 1, begin, begin + 1):
            for second in (begin + len(inner) - 1, begin + len(inner), begin + len(inner) + 1):
                w = wire()
                w.send(inner)  # whose head is known from now on
                for piece in (outer[:first], outer[first:second], outer[second:]):
                    w.send(piece)
                await settle()
                bodies = [answer.body for answer in w.answers()]
                assert bodies == [said(b"x", "/inner"), said(inner, "/outer")]

    on_loop(test)


@settings(max_examples=200)
@given(
    st.lists(requests(), min_size=1, max_size=6),
    st.lists(st.integers(0, 400_000), max_size=12),
    st.lists(st.booleans(), max_size=6),
    st.lists(st.booleans(), max_size=12),
    st.lists(st.booleans(), max_size=12),
)
def test_pipelined_stream_cut_anywhere(
    asked: list[tuple[bytes, bytes]],
    cuts: list[int],
    around: list[bool],
    releases: list[bool],
    busy: list[bool],
) -> None:
    """Around bodies that are a request that is known, too; and in turns that are over."""
    asked = [(KNOWN, said(b"", "/g", "GET", "q")), *asked]
    stream = b"".join(sent for sent, _ in asked)
    known = [found.span() for found in re.finditer(re.escape(KNOWN), stream)]
    spans = [span for span, is_cut in zip(known, around, strict=False) if is_cut]
    edges = [0, *sorted([*(c % len(stream) for c in cuts), *itertools.chain(*spans)]), len(stream)]

    async def test() -> None:
        route = echo_route()
        w = wire(route)
        pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
        for piece, release, is_over in itertools.zip_longest(pieces, releases, busy):
            if is_over:
                w.connection.port.turns.worked_us = WORK_A_TURN_US
            w.send(piece or b"")
            if release and route.held:
                route.held.pop().release()  # the newest first: answers are put in order
        while len(w.answers()) < len(asked):
            while route.held:
                route.held.pop().release()
            await settle()
        assert [answer.body for answer in w.answers()] == [body for _, body in asked]
        assert not w.is_closing()

    on_loop(test)


def test_one_byte_at_a_time() -> None:
    async def test() -> None:
        w = wire()
        stream = request(body=b"abc") + chunked(b"0123456789", [3, 3]) + request("/b", method="GET")
        for index in range(len(stream)):
            w.send(stream[index : index + 1])
        bodies = [answer.body for answer in w.answers()]
        assert bodies == [said(b"abc"), said(b"0123456789"), said(b"", "/b", "GET")]

    on_loop(test)


def test_large_body_is_received_into_its_own_memory() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route, max_request_bytes=2_000_000)
        body = random.Random(1).randbytes(1_500_000)
        sent = request("/held", body)
        w.send(sent[:500_000])
        room = w.connection.get_buffer(-1)
        assert room.obj is not w.connection.port.read_buffer.obj
        assert len(room) == READ_BYTES_AT_ONCE
        w.send(sent[500_000:])
        assert route.held[0].body == body

    on_loop(test)


# Order, and how many at once.


def test_answers_leave_in_order_and_in_one_write() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(b"".join(request("/held", b"%d" % number) for number in range(5)))
        first, *rest = route.held
        for exchange in reversed(rest):
            exchange.release()
        await settle()
        assert w.output == b""
        first.release()
        assert [a.body[-1:] for a in w.answers()] == [b"0", b"1", b"2", b"3", b"4"]
        assert w.write_calls == 1

    on_loop(test)


def test_answers_of_one_turn_are_joined_though_more_are_awaited() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD * 5)
        for exchange in route.held[:3]:
            exchange.release()
        assert w.output == b""
        await settle()
        assert (len(w.answers()), w.write_calls) == (3, 1)

    on_loop(test)


def test_pipelining_is_bounded() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD * (MAX_PIPELINED + 5))
        await settle()
        await settle()
        assert len(route.held) == MAX_PIPELINED
        assert not w.reading
        route.held[0].release()
        await settle()
        assert (len(route.held), w.reading) == (MAX_PIPELINED + 1, False)
        for exchange in route.held[1:]:
            exchange.release()
        await settle()
        assert (len(route.held), w.reading) == (MAX_PIPELINED + 5, True)
        w.send(HELD)
        assert len(route.held) == MAX_PIPELINED + 6

    on_loop(test)


# Keep-alive and its end.


@pytest.mark.parametrize(
    ("version", "asked", "answered", "closes"),
    [
        ("1.1", {}, None, False),
        ("1.1", {"connection": "close"}, "close", True),
        ("1.0", {}, "close", True),
        ("1.0", {"connection": "keep-alive"}, "keep-alive", False),
    ],
)
def test_connection_header(
    version: str, asked: dict[str, Any], answered: str | None, closes: bool
) -> None:
    async def test() -> None:
        w = wire()
        w.send(request(version=version, **asked) + request("/next"))
        first = w.answers()[0]
        assert first.header("connection") == answered
        assert (len(w.answers()), w.closed) == (1 if closes else 2, closes)

    on_loop(test)


def test_nothing_behind_the_last_request_is_answered() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(request("/held", connection="close") + request("/next"))
        w.send(request("/next"))
        assert w.reading, "a caller that hangs up would not be seen"
        route.held[0].release()
        assert len(w.answers()) == 1
        assert w.closed

    on_loop(test)


def test_what_follows_the_last_request_is_bounded() -> None:
    async def test() -> None:
        w = wire()
        w.send(request("/held", connection="close"))
        w.send(b"x" * (MAX_REQUEST_BYTES + 2 * READ_BYTES))
        assert not w.reading

    on_loop(test)


@pytest.mark.parametrize("path", ["/echo", "/held"])
def test_head_request_has_no_body(path: str) -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(f"HEAD {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() + request("/next"))
        for exchange in route.held:
            exchange.release()
        await settle()
        first, second = w.answers(["HEAD", "POST"])
        assert first.body == b""
        assert first.header("content-length") == str(len(said(b"", path, "HEAD")))
        assert second.body == said(b"", "/next")

    on_loop(test)


def test_caller_that_hangs_up_abandons_what_it_asked_for() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD * 3 + request("/held", b"x" * 100)[:-50])
        first, second, third = route.held
        second.release()  # settled, though its turn never came
        w.connection.connection_lost(None)
        assert route.abandoned[:2] == [first, third]
        assert len(route.abandoned) == 3, "the one that was arriving"
        third.release()
        assert w.output == b""
        assert not w.connection.port.connections

    on_loop(test)


def test_nothing_is_written_once_the_connection_is_lost() -> None:
    async def test() -> None:
        faults: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        route = echo_route()
        w = wire(route)
        w.send(HELD * 2 + request() * 30)  # more than one turn takes: it waits for the next
        route.held[0].release()  # written at the end of this turn
        w.lose()
        await settle()
        assert (faults, w.output) == ([], b"")
        assert not w.connection.port.budget.held_bytes

    on_loop(test)


def test_nothing_is_written_to_a_transport_that_closes() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD * 2)
        w.close()  # as after an error of a write: the loss is reported in a later turn
        for exchange in route.held:
            exchange.release()
        assert w.write_calls == 0
        await settle()
        assert w.lost

    on_loop(test)


# Refusals.


def post(*lines: bytes) -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"host: x", *lines, b"", b""])


SIZED, CHUNKED = b"content-length: 1", b"transfer-encoding: chunked"
OVER, HUGE_LINE = MAX_REQUEST_BYTES + 1, b"x" * MAX_HEAD_BYTES


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"\x16\x03\x01 this is not HTTP", 400, "not valid HTTP"),
        (b"nonsense\r\n\r\n", 400, "not valid HTTP"),
        (post(SIZED, CHUNKED) + b"0\r\n\r\n", 400, "Content-Length"),
        (post(SIZED, SIZED) + b"x", 400, "Duplicate"),
        (chunked(b"abc", [])[:-5] + b"nonsense\r\n", 400, "is not the size of a chunk"),
        (b"GET /" + HUGE_LINE, 431, "over 65536 bytes"),
        (post(b"x: " + HUGE_LINE), 431, "over 65536 bytes"),
        (post(b"content-length: %d" % OVER), 413, f"over {MAX_REQUEST_BYTES} bytes"),
        (chunked(b"x" * OVER, [1000] * 300), 413, f"over {MAX_REQUEST_BYTES} bytes"),
        (post(b"transfer-encoding: gzip, chunked"), 501, "gzip, chunked"),
    ],
    ids=[
        "TLS", "nonsense", "both framings", "two lengths", "no chunk", "long URL", "long header",
        "long body", "long chunks", "other coding",
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [b"", request()])
def test_refusal(sent: bytes, status: int, words: str, before: bytes) -> None:
    async def test() -> None:
        w = wire()
        with refused(w, status, words):
            w.send(before + sent)
            while not w.ended:
                await settle()
            await settle()
        assert refusals(w.connection.port) == 1

    on_loop(test)


def test_refusal_waits_for_its_turn() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route)
        w.send(HELD + b"nonsense\r\n\r\n")
        assert w.output == b""
        with refused(w, 400, "not valid HTTP"):
            route.held[0].release()
        assert [answer.status for answer in w.answers()] == [200, 400]

    on_loop(test)


def test_small_limit_holds_for_a_body_in_one_piece() -> None:
    async def test() -> None:
        route = echo_route()
        w = wire(route, max_request_bytes=10)
        w.send(request(body=b"0123456789"))
        with refused(w, 413, "over 10 bytes"):
            w.send(request(body=b"0123456789a"))
        assert [type(error).__name__ for error in route.refused] == ["PayloadTooLargeError"]

    on_loop(test)


def test_refused_peer_that_sends_on_is_cut_off() -> None:
    async def test() -> None:
        w = wire()
        w.send(b"nonsense\r\n\r\n")
        w.send(b"x" * (MAX_REQUEST_BYTES + READ_BYTES))
        assert not w.closed
        w.send(b"x")
        assert w.closed

    on_loop(test)


def test_connections_beyond_the_limit_are_told_so() -> None:
    async def test() -> None:
        port = make_port(echo_route(), max_connections=2)
        wires = [Wire(port) for _ in range(3)]
        for w in wires[:2]:
            w.send(request())
            assert w.answers()[0].status == 200
        with refused(wires[2], 503, "2 connections are open"):
            pass
        assert wires[2].answers()[0].header("retry-after") == "1"
        dropped = [Wire(port) for _ in range(70)]
        assert [w.aborted for w in dropped] == [False] * 64 + [True] * 6

    on_loop(test)


def test_interim_answer_stands_behind_an_answer_given_at_once() -> None:
    async def test() -> None:
        w = wire()
        expecting = request("/echo", b"second", expect="100-continue")
        w.send(request("/echo", b"first") + expecting[: -len(b"second")])
        await settle()
        assert w.output.index(said(b"first")) < w.output.index(b"HTTP/1.1 100 ")
        w.send(b"second")
        assert w.output.endswith(said(b"second"))

    on_loop(test)


def test_length_with_thousands_of_zeros_is_read() -> None:
    """Python refuses to read as many digits."""

    async def test() -> None:
        w = wire()
        w.send(request("/echo", b"hello").replace(b"length: 5", b"length: " + b"0" * 5000 + b"5"))
        assert [answer.body for answer in w.answers()] == [said(b"hello")]

    on_loop(test)


@pytest.mark.parametrize("chunks", [1, 130])
def test_request_that_waits_for_turns_has_no_longer_to_arrive(chunks: int) -> None:
    """A connection that sent so much that it waited for a turn used to restart its timeout."""

    async def test() -> None:
        w, loop = wire(receive_timeout_s=0.2), asyncio.get_running_loop()
        w.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        began = loop.time()
        while not w.output and loop.time() - began < 5:
            w.send((b"10\r\n" + b"a" * 16 + b"\r\n") * chunks)
            await asyncio.sleep(0.05)
            w.connection.port.tick()
            w.connection.sweep()
        assert [answer.status for answer in w.answers()] == [408]

    on_loop(test)
