"""Responses in pieces: their framing, their turn, and how fast the peer reads them."""

import asyncio
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import BufferFullError, ServingError, UnsupportedError
from services.wire.body import Body
from services.wire.http1.asgi import asgi_opener
from services.wire.http1.exchange import Exchange
from services.wire.http1.response_stream import EVENT_STREAM, ResponseStream, event
from tests.unit.wire.http_wire import Wire, make_port, on_loop, request, settle
from tests.unit.wire.test_http_asgi import Receive, Send, wire_to


class Streamed(Exchange):
    """Streams for `/stream`, once the test gives pieces; answers whole otherwise."""

    __slots__ = ("sending", "taken")
    begun: "ClassVar[list[Streamed]]"
    abandoned: "ClassVar[list[Streamed]]"

    def begin(self, body: Body) -> None:
        """Begins a stream, or answers at once."""
        self.taken = 0
        if self.head.path == "/stream":
            self.begun.append(self)
            try:
                self.sending: ResponseStream = self.respond_in_parts(200, EVENT_STREAM)
            except UnsupportedError as error:
                self.respond_error(error)
        else:
            self.respond(200, b"", [self.head.path.encode()])

    def give(self, data: bytes) -> None:
        """Sends one piece."""
        self.sending.write(data, self._was_taken)

    def _was_taken(self) -> None:
        self.taken += 1

    def abandon(self) -> None:
        """Remembers."""
        super().abandon()
        self.abandoned.append(self)


def streaming() -> Wire:
    """Opens a connection to a port of its own."""
    Streamed.begun, Streamed.abandoned = [], []
    return Wire(make_port(Streamed))


def held(w: Wire) -> int:
    """Bytes that the budget is charged for."""
    return w.connection.port.budget.held_bytes


def test_pieces_are_chunks_and_the_connection_goes_on() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream"))
        (one,) = Streamed.begun
        assert w.output.endswith(b"\r\n\r\n"), "the head goes out before the first piece"
        one.give(b"a" * 20)
        one.give(b"b")
        assert one.taken == 2
        one.sending.end()
        w.send(request("/next"))
        first, second = w.answers()
        assert (first.body, first.header("transfer-encoding")) == (b"a" * 20 + b"b", "chunked")
        assert first.header("content-length") is None
        assert first.header("cache-control") == "no-cache"
        assert second.body == b"/next"
        assert held(w) == 0

    on_loop(test)


def test_stream_without_pieces_is_an_empty_body() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream"))
        Streamed.begun[0].sending.end()
        assert [answer.body for answer in w.answers()] == [b""]

    on_loop(test)


def test_answers_keep_their_order_around_a_stream() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream") + request("/stream") + request("/whole"))
        first, second = Streamed.begun
        second.give(b"second")
        second.sending.end()
        assert second.taken == 0, "its turn has not come"
        first.give(b"first")
        first.sending.end()
        await settle()
        assert [answer.body for answer in w.answers()] == [b"first", b"second", b"/whole"]
        assert (second.taken, held(w)) == (1, 0)

    on_loop(test)


def test_slow_reader_holds_its_producer_and_is_charged() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream"))
        (one,) = Streamed.begun
        w.connection.pause_writing()
        written = len(w.output)
        one.give(b"a" * 1000)
        one.give(b"b" * 1000)
        one.sending.end()
        assert (one.taken, len(w.output)) == (0, written)
        assert held(w) >= 2000
        w.connection.resume_writing()
        assert one.taken == 2
        assert w.answers()[0].body == b"a" * 1000 + b"b" * 1000
        assert held(w) == 0

    on_loop(test)


def test_peer_that_hangs_up_ends_the_stream() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream"))
        (one,) = Streamed.begun
        w.connection.pause_writing()
        one.give(b"a" * 1000)
        w.lose()
        assert Streamed.abandoned == [one]
        assert (one.taken, held(w)) == (0, 0)
        with pytest.raises(ServingError):
            one.give(b"more")
        one.sending.end()
        assert held(w) == 0

    on_loop(test)


def test_piece_without_room_is_refused() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream"))
        w.connection.pause_writing()
        with pytest.raises(BufferFullError):
            Streamed.begun[0].give(bytes(w.connection.port.budget.limit_bytes))
        assert held(w) == Streamed.begun[0].head.memory_bytes

    on_loop(test)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_error_ends_a_stream_although_there_is_no_room(version: str) -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream", version=version))
        (one,) = Streamed.begun
        w.connection.pause_writing()
        one.give(b"part")
        budget = w.connection.port.budget
        others = budget.limit_bytes - budget.held_bytes
        budget.held_bytes += others
        with pytest.raises(BufferFullError):
            one.give(b"one more")
        one.sending.end(b"error")
        budget.held_bytes -= others
        w.connection.resume_writing()
        await settle()
        assert w.answers()[0].body == b"parterror"
        assert held(w) == 0

    on_loop(test)


def test_response_that_breaks_off_ends_the_connection() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream") + request("/whole"))
        (one,) = Streamed.begun
        one.give(b"half")
        one.sending.break_off()
        await settle()
        assert w.closed
        assert w.output.endswith(b"4\r\nhalf\r\n"), "neither an end nor another answer"

    on_loop(test)


def test_client_of_http_1_0_reads_until_the_connection_ends() -> None:
    async def test() -> None:
        w = streaming()
        w.send(request("/stream", version="1.0"))
        (one,) = Streamed.begun
        one.give(b"plain")
        one.sending.end()
        await settle()
        head, _, body = w.output.partition(b"\r\n\r\n")
        assert body == b"plain"
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert w.closed

    on_loop(test)


def test_stream_before_another_request_of_http_1_0_is_refused() -> None:
    async def test() -> None:
        w = streaming()
        stream, whole = (
            request(path, version="1.0", connection="keep-alive") for path in ("/stream", "/whole")
        )
        w.send(stream + whole)
        first, second = w.answers()
        assert first.status == 501
        assert b"use HTTP/1.1" in first.body
        assert second.body == b"/whole"

    on_loop(test)


PIECES = st.lists(st.binary(min_size=1, max_size=8), max_size=4)


@given(st.lists(st.tuples(st.booleans(), PIECES), min_size=1, max_size=6), st.integers(0, 9999))
def test_every_interleaving_gives_the_same_answers(
    asked: list[tuple[bool, list[bytes]]], seed: int
) -> None:
    random = Random(seed)

    async def test() -> None:
        w, is_paused = streaming(), False
        for is_stream, _ in asked:
            w.send(request("/stream" if is_stream else "/whole"))
        pieces = [list(parts) for is_stream, parts in asked if is_stream]
        todo = list(zip(list(Streamed.begun), pieces, strict=True))
        while todo:
            one, left = random.choice(todo)
            match random.randrange(4):
                case 0:
                    is_paused = not is_paused
                    if is_paused:
                        w.connection.pause_writing()
                    else:
                        w.connection.resume_writing()
                case _ if left:
                    one.give(left.pop(0))
                case _:
                    one.sending.end()
                    todo.remove((one, left))
        if is_paused:
            w.connection.resume_writing()
        await settle()
        expected = [b"".join(parts) if is_stream else b"/whole" for is_stream, parts in asked]
        assert [answer.body for answer in w.answers()] == expected
        assert held(w) == 0

    on_loop(test)


def test_event_is_of_the_form_that_browsers_read() -> None:
    assert event(b"{}") == b"data: {}\n\n"
    assert event(b"{}", "error") == b"event: error\ndata: {}\n\n"


# Applications that stream.


def test_application_is_paused_while_its_reader_is_slow() -> None:
    sent: list[int] = []

    async def application(_: object, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
            sent.append(number)
        await send({"type": "http.response.body"})

    async def test() -> None:
        w = wire_to(application)
        w.connection.pause_writing()
        w.send(request())
        await settle()
        assert not sent
        w.connection.resume_writing()
        await settle()
        assert sent == [0, 1, 2]
        assert w.answers()[0].body == b"012"

    on_loop(test)


def test_application_learns_that_its_reader_has_gone() -> None:
    told = asyncio.Event()

    async def application(_: object, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.body", "body": b"b", "more_body": True})
        told.set()

    async def test() -> None:
        w = wire_to(application)
        w.send(request())
        await settle()
        w.lose()
        await asyncio.wait_for(told.wait(), 5)
        await settle()
        assert held(w) == 0

    on_loop(test)


def test_application_that_fails_in_the_middle_breaks_the_response_off() -> None:
    async def application(_: object, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise ValueError("in the middle")

    async def test() -> None:
        w = wire_to(application)
        w.send(request())
        await settle()
        assert w.closed
        assert not w.output.endswith(b"0\r\n\r\n")

    on_loop(test)


def test_head_request_of_a_stream_has_no_body() -> None:
    async def application(_: object, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            if (await __())["type"] == "http.disconnect":
                return

    async def test() -> None:
        w = wire_to(application)
        w.send(request(method="HEAD"))
        await settle()
        (answer,) = w.answers(["HEAD"])
        assert (answer.status, answer.body) == (200, b"")

    on_loop(test)


def test_stream_of_http_1_0_before_another_request_is_refused_for_applications_too() -> None:
    async def application(_: object, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a"})

    async def test() -> None:
        w = wire_to(application)
        w.send(2 * request(version="1.0", connection="keep-alive"))
        await settle()
        await settle()
        assert w.answers()[0].status == 501

    on_loop(test)


def test_stream_begins_only_once_the_answers_before_it_are_there() -> None:
    begun: list[str] = []

    async def application(scope: Any, __: Any, send: Any) -> None:
        begun.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await asyncio.Event().wait()

    async def test() -> None:
        w = Wire(make_port(asgi_opener(application, streams=True)))
        w.send(request("/1") + request("/2") + request("/3"))
        await settle()
        assert begun == ["/1"], "a connection has one stream in flight"
        w.lose()

    on_loop(test)
