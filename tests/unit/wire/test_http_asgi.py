"""ASGI applications behind our server: their scopes and events, and their responses."""

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.errors import QueueUnavailableError
from services.wire.http1.asgi import asgi_opener
from tests.unit.wire.http_wire import Wire, chunked, make_port, on_loop, request, settle

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def wire_to(application: Any) -> Wire:
    return Wire(make_port(asgi_opener(application)))


async def send_all(
    send: Send,
    *bodies: bytes | memoryview,
    status: int = 200,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    fields = [(b"content-length", b"%d" % sum(map(len, bodies))), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    for body in bodies:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


def test_scope_and_body() -> None:
    told: list[Any] = []

    async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        told.extend((scope, await receive()))
        await send_all(send, b"one", b"two", status=201, headers=[(b"X-Own", b"v")])

    async def test() -> None:
        w = wire_to(application)
        w.send(request("/a%20b?q=1", b"body", X_Given="g"))
        w.send(chunked(b"0123456789", [3], path="/c"))
        await settle()
        first, second = w.answers()
        assert (first.status, first.body, first.header("x-own")) == (201, b"onetwo", "v")
        assert first.header("content-length") == "6"
        assert second.status == 201
        scope, message = told[:2]
        assert message["body"] == b"body"
        assert not message.get("more_body")
        assert (scope["type"], scope["method"], scope["http_version"]) == ("http", "POST", "1.1")
        assert (scope["path"], scope["raw_path"]) == ("/a b", b"/a%20b")
        assert scope["query_string"] == b"q=1"
        assert (b"x-given", b"g") in scope["headers"]
        assert told[3]["body"] == b"0123456789"

    on_loop(test)


def test_large_responses_are_compressed_for_who_asks() -> None:
    async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send_all(send, b"", memoryview(b"a" * 1000), b"b" * 1000)

    async def test() -> None:
        plain, zipped = wire_to(application), wire_to(application)
        plain.send(request())
        zipped.send(request(accept_encoding="gzip"))
        await settle()
        (first,), (second,) = plain.answers(), zipped.answers()
        assert first.body == b"a" * 1000 + b"b" * 1000
        assert first.header("content-encoding") is None
        assert second.header("content-encoding") == "gzip"
        assert gzip.decompress(second.body) == first.body

    on_loop(test)


def test_headers_count_as_work() -> None:
    """A turn of the event loop begins few requests with many headers."""

    async def test() -> None:
        begun: asyncio.Queue[str] = asyncio.Queue()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            begun.put_nowait(scope["path"])
            await send_all(send, b"")

        port = make_port(asgi_opener(application))
        turns = []
        for headers in (0, 200):
            before = port.turns.number
            wires = [Wire(port) for _ in range(8)]
            for wire in wires:
                fields: dict[str, Any] = {f"x_{number}": "1" for number in range(headers)}
                wire.send(request(**fields))
            for _ in wires:
                await begun.get()
            turns.append(port.turns.number - before)
        assert turns[1] > turns[0] + 4

    on_loop(test)


def test_answers_keep_their_order() -> None:
    gate = asyncio.Event()

    async def application(scope: dict[str, Any], _: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await gate.wait()
        await send_all(send, scope["path"].encode())

    async def test() -> None:
        w = wire_to(application)
        w.send(request("/slow") + request("/fast"))
        await settle()
        assert w.output == b""
        gate.set()
        await settle()
        assert [answer.body for answer in w.answers()] == [b"/slow", b"/fast"]

    on_loop(test)


def test_framing_is_ours() -> None:
    async def application(_: Any, __: Receive, send: Send) -> None:
        wrong = [(b"Content-Length", b"9"), (b"Connection", b"close"), (b"Date", b"never")]
        await send_all(send, b"abc", headers=[*wrong, (b"transfer-encoding", b"chunked")])

    async def test() -> None:
        w = wire_to(application)
        w.send(request())
        await settle()
        (answer,) = w.answers()
        assert (answer.body, answer.header("connection")) == (b"abc", None)
        assert w.output.lower().count(b"content-length") == 1
        assert b"never" not in w.output

    on_loop(test)


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
def test_header_that_would_be_two_is_never_sent(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def application(_: Any, __: Receive, send: Send) -> None:
        await send_all(send, b"abc", headers=[(b"x", value)])

    async def test() -> None:
        w = wire_to(application)
        w.send(request())
        await settle()
        (answer,) = w.answers()
        assert answer.status == 500
        assert b"set-cookie" not in w.output

    with caplog.at_level(logging.ERROR):
        on_loop(test)
    assert "line end in the header" in caplog.text


async def raising(_: Any, __: Any, ___: Any) -> None:
    raise ZeroDivisionError("secret")


async def silent(_: Any, __: Any, ___: Any) -> None:
    pass


def test_refusal_behind_the_head_breaks_the_response_off(caplog: pytest.LogCaptureFixture) -> None:
    """As when the store of an application fails; a framework wraps the error in its own."""

    async def application(_: Any, __: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        try:
            raise QueueUnavailableError("the store is away")
        except QueueUnavailableError as error:
            raise RuntimeError("response already started") from error

    async def test() -> None:
        w = wire_to(application)
        w.send(request("/broken"))
        await settle()
        assert w.output.endswith(b"first\r\n"), "no last chunk"
        assert w.closed

    with caplog.at_level(logging.WARNING):
        on_loop(test)
    (record,) = caplog.records
    assert record.exc_info is None
    assert (record.__dict__["path"], record.__dict__["reason"]) == ("/broken", "the store is away")


@pytest.mark.parametrize("application", [raising, silent])
def test_failing_application_is_our_fault(
    application: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        w = wire_to(application)
        w.send(request())
        await settle()
        (answer,) = w.answers()
        assert answer.status == 500
        assert answer.body == b'{"error":"internal error; see the server\'s log"}'
        assert answer.header("connection") is None

    with caplog.at_level(logging.ERROR):
        on_loop(test)
    assert "the application failed" in caplog.text


def test_caller_that_hangs_up() -> None:
    seen: list[Any] = []

    async def application(_: Any, receive: Receive, send: Send) -> None:
        seen.append((await receive())["type"])
        seen.append((await receive())["type"])
        await send_all(send, b"too late")
        seen.append("ended")

    async def test() -> None:
        w = wire_to(application)
        w.send(request())
        await settle()
        assert seen == ["http.request"]
        w.connection.connection_lost(None)
        await settle()
        assert seen == ["http.request", "http.disconnect", "ended"]
        assert w.output == b""

    on_loop(test)
