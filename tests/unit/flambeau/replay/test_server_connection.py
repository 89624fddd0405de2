"""Requests to servers that answer, and to servers that do anything else."""

import asyncio
from typing import Any

import pytest

from flambeau.replay.errors import NoAnswerError, ServerUrlError, UnreachableError
from flambeau.replay.records import Answer, RecordedRequest
from flambeau.replay.server_connection import CallLimits, ServerConnection
from flambeau.replay.server_url import ServerUrl, parse_listen
from tests.unit.flambeau.replay.scripted_http import (
    Handler,
    answer,
    answering,
    read_request,
    serving,
)

LIMITS = CallLimits(timeout_s=30, max_answer_bytes=100_000)
SHORT = CallLimits(timeout_s=0.2, max_answer_bytes=100_000)
HEAD = b"HTTP/1.1 200 OK\r\n"


def request(**changes: Any) -> RecordedRequest:
    fields: dict[str, Any] = {
        "number": 1, "name": "r", "method": "POST", "path": "/p?q=1", "headers": (("a", "b"),),
        "body": b"body", "answer": None,
    }  # fmt: skip
    return RecordedRequest(**{**fields, **changes})


async def asked(handler: Handler, limits: CallLimits = LIMITS, **changes: Any) -> Answer:
    async with serving(handler) as url:
        connection = ServerConnection(ServerUrl.parse(url), limits)
        try:
            return await connection.call(request(**changes))
        finally:
            connection.close()


async def test_a_request_is_sent_as_recorded_without_what_belongs_to_a_connection() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(answer(b"ok"))

    headers = (("host", "old"), ("connection", "close"), ("content-length", "99"), ("x", "y"))
    async with serving(handle) as url:
        server = ServerUrl.parse(f"{url}/prefix/")
        connection = ServerConnection(server, LIMITS, "secret")
        sent = request(
            headers=(*headers, ("authorization", "Bearer old"), ("expect", "100-continue"))
        )
        assert (await connection.call(sent)).body == b"ok"
        connection.close()
    lines = seen[0][0].decode().split("\r\n")[:-2]
    assert lines == [
        "POST /prefix/p?q=1 HTTP/1.1", f"host: {server.authority}", "x: y",
        "authorization: Bearer secret", "content-length: 4",
    ]  # fmt: skip
    assert seen[0][1] == b"body"


async def test_a_connection_is_used_again_and_renewed_when_the_server_closed_it() -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):  # then it closes without a word
            await read_request(reader)
            writer.write(answer(b"ok"))
            await writer.drain()

    async with serving(handle) as url:
        connection = ServerConnection(ServerUrl.parse(url), LIMITS)
        bodies = [(await connection.call(request())).body for _ in range(5)]
        connection.close()
    assert bodies == [b"ok"] * 5
    assert connections == 3


async def test_chunks_and_answers_to_head_and_to_the_end_are_read() -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert (await asked(answering(chunked))).body == b"abc"
    assert (await asked(answering(answer(b"abc")[:-3]), method="HEAD", body=b"")).body == b""

    async def to_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"\r\nall of it")
        await writer.drain()

    assert (await asked(to_the_end)).body == b"all of it"


async def test_a_redirect_is_an_answer() -> None:
    found = await asked(answering(answer(b"", "302 Found", "location: http://127.0.0.1:1/")))
    assert (found.status, found.header("location")) == (302, "http://127.0.0.1:1/")


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(HEAD + b"\r\n")
    while True:
        writer.write(b"x" * 2**16)
        await writer.drain()


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(HEAD)
    while True:
        writer.write(b"x: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def endless_hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
        await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)


async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(answer(b"whole")[:-2])
    await writer.drain()


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    for byte in answer(b"x" * 1000):
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (endless, "over 100000 bytes"),
        (endless_headers, "beside its body|over 100000 bytes"),
        (endless_hints, "over 100000 bytes"),
        (silent, "no answer within 0.2 s"),
        (slow, "no answer within 0.2 s"),
        (nothing, "without an answer"),
        (half, "ended within the answer"),
        (answering(b"no http\r\n\r\n"), "no HTTP/1"),
        (answering(HEAD + b"content-length: -1\r\n\r\n"), "no HTTP/1"),
        (answering(HEAD + b"content-length: 99999999999\r\n\r\n" + b"x" * 200_000), "over 100000"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_server_that_does_not_answer_is_given_up(handler: Handler, told: str) -> None:
    limits = SHORT if handler in (silent, slow) else LIMITS
    with pytest.raises(NoAnswerError, match=told):
        await asked(handler, limits)


async def test_no_server_is_said_to_be_there() -> None:
    async with serving(nothing) as url:
        pass
    with pytest.raises(UnreachableError, match=f"no connection to {url}"):
        await ServerConnection(ServerUrl.parse(url), LIMITS).call(request())


@pytest.mark.parametrize(
    "url",
    ["", "old", "old:8080", "ftp://old", "http://", "http://old:0", "http://old:99999",
     "http://a b", "http://old/?x", "http://old/#x", "http://me:secret@old", "http://[::1", "http://old\r\nx:"],
)  # fmt: skip
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ServerUrlError, match="give http://HOST:PORT"):
        ServerUrl.parse(url)


def test_a_url_is_taken_apart() -> None:
    found = ServerUrl.parse("http://[::1]:8080/a/b/")
    assert (found.host, found.port, found.prefix, found.authority) == (
        "::1",
        8080,
        "/a/b",
        "[::1]:8080",
    )
    assert ServerUrl.parse("https://old").port == 443
    assert ServerUrl.parse("https://old").authority == "old"
    with pytest.raises(ServerUrlError, match="has a path"):
        ServerUrl.parse_origin("http://old/a")
    assert parse_listen("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_listen("[::1]:9080") == ("::1", 9080)
    for wrong in ("9080", ":9080", "a:", "a:x", "a:70000", "a:²"):
        with pytest.raises(ServerUrlError, match="give HOST:PORT"):
            parse_listen(wrong)
