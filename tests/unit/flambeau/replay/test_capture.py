"""A recording proxy between clients and servers of raw bytes."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.replay.capturing import proxy as proxy_module
from flambeau.replay.capturing import recorder as recorder_module
from flambeau.replay.capturing.connection_tap import EXCHANGE_BYTES
from flambeau.replay.capturing.exchange import (
    PIECE_BYTES,
    Exchange,
    is_credential,
    line_pieces,
    without_credentials,
)
from flambeau.replay.capturing.proxy import CaptureProxy
from flambeau.replay.capturing.recorder import Recorder, RecordingLimits
from flambeau.replay.errors import RequestFileError
from flambeau.replay.http1_messages import Message
from flambeau.replay.request_document import read_request
from flambeau.replay.server_url import ServerUrl
from tests.unit.flambeau.replay.scripted_http import (
    Handler,
    answer,
    answering,
    serving,
)
from tests.unit.flambeau.replay.scripted_http import read_request as read_bytes

LIMITS = RecordingLimits(max_body_bytes=1000, max_file_bytes=100_000)
POST = b"POST /p HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nbody"
STOP_S = 5.0


class Captured:
    """A running proxy."""

    def __init__(self, port: int, recorder: Recorder, proxy: CaptureProxy, path: Path) -> None:
        self.port, self.recorder, self.proxy, self.path = port, recorder, proxy, path

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def asked(self, *requests: bytes) -> bytes:
        """Sends requests on one connection, half-closes it, and returns all that comes."""
        async with self.client() as (reader, writer):
            writer.writelines(requests)
            writer.write_eof()
            return await reader.read()

    def lines(self) -> list[dict[str, Any]]:
        """The capture, once the proxy has stopped."""
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


@contextlib.asynccontextmanager
async def capturing(
    path: Path, handler: Handler, limits: RecordingLimits = LIMITS
) -> AsyncIterator[Captured]:
    async with serving(handler) as url:
        recorder = Recorder(path, limits)
        proxy = CaptureProxy(ServerUrl.parse_origin(url), recorder)
        try:
            port = await proxy.start("127.0.0.1", 0)
            yield Captured(port, recorder, proxy, path)
            await proxy.stop(STOP_S)
        finally:
            recorder.close()


async def test_requests_are_recorded_and_bytes_pass_unchanged(tmp_path: Path) -> None:
    sent: list[bytes] = []
    odd = b"HTTP/1.1 200  Odd \r\nX-Case:kept\r\ncontent-length: 2\r\n\r\nok"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_bytes(reader)
            sent.append(head + body)
            writer.write(odd)

    request = (
        b"POST /p?x=%20 HTTP/1.1\r\nHoSt:  h\r\nX-A: 1\r\nX-A: 2\r\ncontent-length: 4\r\n\r\nbody"
    )
    async with capturing(tmp_path / "c", handle) as captured:
        assert await captured.asked(request, request) == odd + odd
    assert sent == [request, request]
    first, second = captured.lines()
    assert first["time"] <= second["time"]
    del first["time"]
    assert first == {
        "method": "POST", "path": "/p?x=%20", "headers": {"x-a": ["1", "2"]}, "body": "body",
    }  # fmt: skip
    assert captured.path.stat().st_mode & 0o777 == 0o600


async def test_a_streamed_answer_passes_as_it_comes(tmp_path: Path) -> None:
    """Each chunk is asked for by the one before, so that none can be held back."""
    go_on = asyncio.Event()
    limits = replace(LIMITS, answers=True)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_bytes(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in (b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"):
            writer.write(piece)
            await go_on.wait()
            go_on.clear()

    async with (
        capturing(tmp_path / "c", handle, limits) as captured,
        captured.client() as (reader, writer),
    ):
        writer.write(POST)
        await reader.readuntil(b"\r\n\r\n")
        for piece in (b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"):
            assert await reader.readexactly(len(piece)) == piece
            go_on.set()
    (line,) = captured.lines()
    assert line["answer"]["body"] == "ab"
    assert line["answer"]["status"] == 200
    assert line["answer"]["ms"] > 0


async def test_a_streamed_request_passes_as_it_comes(tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(6) == b"1\r\na\r\n"
        arrived.set()
        assert await reader.readexactly(5) == b"0\r\n\r\n"
        writer.write(answer(b"ok"))
        await asyncio.Event().wait()

    async with (
        capturing(tmp_path / "c", handle) as captured,
        captured.client() as (reader, writer),
    ):
        writer.write(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await arrived.wait()
        writer.write(b"0\r\n\r\n")
        await reader.readuntil(b"ok")
    assert [line["body"] for line in captured.lines()] == ["a"]


async def test_credentials_are_not_recorded_unless_asked(tmp_path: Path) -> None:
    request = (
        b"GET /p?max_tokens=5&token=s1&api_key=s2 HTTP/1.1\r\nAuthorization: Bearer s3\r\n"
        b"Cookie: s4\r\nX-Api-Key: s5\r\nx-max-tokens: 5\r\nX-Forwarded-For: s6\r\n\r\n"
    )
    handler = answering(answer(b"ok", "200 OK", "Set-Cookie: s7"))
    limits = replace(LIMITS, answers=True)
    async with capturing(tmp_path / "c", handler, limits) as captured:
        await captured.asked(request)
    text = captured.path.read_text()
    assert not [f"s{n}" for n in range(1, 8) if f"s{n}" in text]
    assert captured.lines()[0]["path"] == "/p?max_tokens=5"
    assert captured.lines()[0]["headers"] == {"x-max-tokens": "5"}
    limits = replace(limits, credentials=True)
    async with capturing(tmp_path / "all", handler, limits) as captured:
        await captured.asked(request)
    text = captured.path.read_text()
    assert [f"s{n}" for n in range(1, 8) if f"s{n}" not in text] == ["s6"]


@pytest.mark.parametrize(
    ("limits", "recorded", "reason"),
    [
        (replace(LIMITS, max_body_bytes=3), 0, "too large"),
        (replace(LIMITS, sample=0), 0, "not sampled"),
        (replace(LIMITS, max_requests=2), 2, "2 requests are recorded"),
        (replace(LIMITS, max_file_bytes=300), 2, "it has reached 300 bytes"),
    ],
    ids=["body", "sample", "requests", "file"],
)
async def test_limits_end_the_recording_and_nothing_else(
    tmp_path: Path, limits: RecordingLimits, recorded: int, reason: str
) -> None:
    async with capturing(tmp_path / "c", answering(answer(b"ok")), limits) as captured:
        assert await captured.asked(*[POST] * 5) == answer(b"ok") * 5
    assert len(captured.lines()) == captured.recorder.recorded == recorded
    told = [captured.recorder.ended, *captured.recorder.left_out]
    assert any(reason in text for text in told), told
    assert captured.path.stat().st_size <= limits.max_file_bytes


async def test_bodies_without_room_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head_bytes = len("/phosthcontent-length4")
    monkeypatch.setattr(recorder_module, "MAX_HELD_BYTES", EXCHANGE_BYTES + head_bytes + 3)
    async with capturing(tmp_path / "c", answering(answer(b"ok"))) as captured:
        assert await captured.asked(POST, b"GET / HTTP/1.1\r\n\r\n") == answer(b"ok") * 2
    assert [line["method"] for line in captured.lines()] == ["GET"]
    assert captured.recorder.left_out == {"no room": 1}


async def test_heads_without_room_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_HELD_BYTES", EXCHANGE_BYTES + 100)
    large = b"GET / HTTP/1.1\r\nx-large: %b\r\n\r\n" % (b"y" * 100)
    async with capturing(tmp_path / "c", answering(answer(b"ok"))) as captured:
        assert await captured.asked(large, b"GET /2 HTTP/1.1\r\n\r\n") == answer(b"ok") * 2
    assert [line["path"] for line in captured.lines()] == ["/2"]
    assert captured.recorder.left_out == {"no room": 1}
    assert captured.recorder.held_bytes == 0


async def test_many_requests_in_one_read_are_recorded(tmp_path: Path) -> None:
    """Their bytes are read along in pieces that end within requests."""
    requests = [b"GET /%d HTTP/1.1\r\nx: %b\r\n\r\n" % (n, b"y" * n) for n in range(80)]
    async with capturing(tmp_path / "c", answering(answer(b"ok"))) as captured:
        assert await captured.asked(*requests) == answer(b"ok") * len(requests)
    assert [line["path"] for line in captured.lines()] == [f"/{n}" for n in range(80)]


async def test_room_is_given_back(tmp_path: Path) -> None:
    limits = replace(LIMITS, max_body_bytes=8)
    head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    large = head + b"5\r\nabcde\r\n" * 2 + b"0\r\n\r\n"
    async with capturing(tmp_path / "c", chunks_or_body, limits) as captured:
        assert await captured.asked(POST, large) == answer(b"ok") * 2
        assert await captured.asked(POST, large[:-10]) == answer(b"ok")
    assert captured.recorder.left_out == {"too large": 1, "cut off": 1}
    assert captured.recorder.recorded == 2
    assert captured.recorder.held_bytes == 0


async def chunks_or_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a request with a body, and one of chunks when its end has come."""
    for end in (b"body", b"0\r\n\r\n"):
        await reader.readuntil(end)
        writer.write(answer(b"ok"))


async def test_an_existing_capture_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text('{"path": "/torn')
    async with capturing(path, answering(answer(b"ok"))) as captured:
        await captured.asked(POST)
    torn, whole = path.read_bytes().splitlines()
    assert torn == b'{"path": "/torn'
    assert json.loads(whole)["path"] == "/p"


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestFileError, match="cannot be written"):
        Recorder(tmp_path / "missing" / "c", LIMITS)


@pytest.mark.parametrize(
    "sent",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        POST + b"nonsense\r\n\r\n",
        Random(7).randbytes(1_000_000),
    ],
    ids=["HTTP/2", "TLS", "large head", "after a request", "noise"],
)
async def test_what_is_not_understood_passes_and_is_not_recorded(
    tmp_path: Path, sent: bytes
) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)

    async with capturing(tmp_path / "c", echo) as captured:
        assert await captured.asked(sent) == sent
    assert captured.recorder.recorded == 0
    assert captured.recorder.left_out["not HTTP/1"] == 1


@pytest.mark.parametrize(("answers", "recorded"), [(True, 0), (False, 1)])
async def test_an_answer_with_a_status_that_is_none_is_left_out(
    tmp_path: Path, answers: bool, recorded: int
) -> None:
    limits = replace(LIMITS, answers=answers)
    async with capturing(tmp_path / "c", answering(answer(b"", "000 X")), limits) as captured:
        await captured.asked(POST)
    assert captured.recorder.recorded == recorded
    assert captured.recorder.left_out["no status of HTTP"] == 1 - recorded


async def test_an_answer_before_the_end_of_its_request_is_left_out(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"too large", "413 No"))
        await writer.drain()

    async with (
        capturing(tmp_path / "c", handle) as captured,
        captured.client() as (reader, writer),
    ):
        writer.write(POST[:-2])
        assert await reader.read() == answer(b"too large", "413 No")
    assert captured.lines() == []
    assert captured.recorder.left_out == {"cut off": 1}


async def test_a_slow_reader_gets_all_of_an_answer_and_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes behind its answer, which is larger than all buffers."""
    monkeypatch.setattr(proxy_module, "LINGER_S", 0.0)
    size = 20_000_000
    written = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_bytes(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(size // 100_000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            written += 100_000
        writer.close()
        await writer.wait_closed()

    async with (
        capturing(tmp_path / "c", handle) as captured,
        captured.client() as (reader, writer),
    ):
        writer.write(POST)
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(5000):  # turns of the loop: it would read all in some hundreds
            await asyncio.sleep(0)
        assert written < size, "a reader that pauses must pause the server"
        assert len(await reader.read()) == size
    assert len(captured.lines()) == 1


async def test_connections_over_the_limit_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "MAX_CONNECTIONS", 1)
    async with (
        capturing(tmp_path / "c", answering(answer(b"ok"))) as captured,
        captured.client() as (reader, writer),
    ):
        writer.write(POST)
        await reader.readuntil(b"ok")
        with contextlib.suppress(ConnectionError):
            assert await captured.asked(POST) == b""
        writer.write(POST)
        await reader.readuntil(b"ok")
    assert captured.proxy.refused == {"over the limit of connections": 1}


async def test_a_client_that_leaves_ends_the_connection_to_the_server(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        left.set()

    async with (
        capturing(tmp_path / "c", handle) as captured,
        captured.client() as (_, writer),
    ):
        writer.write(b"GET / HTTP")
        writer.transport.abort()
        assert await left.wait()
    assert captured.lines() == []


async def test_a_server_that_is_not_there_closes_connections(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "c", LIMITS)
    async with serving(answering(answer(b""))) as url:
        pass
    proxy = CaptureProxy(ServerUrl.parse_origin(url), recorder)
    port = await proxy.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await proxy.stop(STOP_S)
    recorder.close()
    assert [why.partition(":")[0] for why in proxy.refused] == ["no connection to http"]


async def test_a_stop_waits_for_requests_in_flight_and_for_no_idle_connection(
    tmp_path: Path,
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_bytes(reader)
            began.set()
            await go_on.wait()
            writer.write(answer(b"ok"))

    async with (
        capturing(tmp_path / "c", handle) as captured,
        captured.client() as (idle, _),
        captured.client() as (reader, writer),
    ):
        writer.write(POST)
        await began.wait()
        stopping = asyncio.create_task(captured.proxy.stop(3600))
        with contextlib.suppress(ConnectionError):
            assert await idle.read() == b""
        assert not stopping.done()
        go_on.set()
        assert await reader.read() == answer(b"ok")
        await stopping
    assert len(captured.lines()) == 1


async def test_a_stop_cuts_off_what_lasts_too_long(tmp_path: Path) -> None:
    async with (
        capturing(tmp_path / "c", answering(answer(b"ok"))) as captured,
        captured.client() as (reader, writer),
    ):
        writer.write(POST[:-1])
        await asyncio.sleep(0)
        await captured.proxy.stop(0.05)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


@given(st.binary(max_size=200), st.binary(max_size=200), st.sampled_from([1, 1000]))
def test_a_line_gives_back_its_request(body: bytes, answered: bytes, times: int) -> None:
    request = Message(keeps=lambda _: True, method="POST", target=b"/p?q=%ff")
    request.fields, request.body = [(b"X-E", b"\xe9")], bytearray(body * times)
    reply = Message(keeps=lambda _: True, status=418, body=bytearray(answered * times))
    exchange = Exchange(
        time=datetime.now(UTC), started_s=0, request=request, answer=reply, is_recorded=True, ms=2
    )
    line = b"".join(line_pieces(exchange, answers=True, credentials=False))
    assert line.count(b"\n") == 1
    found = read_request(line, 3)
    assert (found.method, found.path, found.headers) == ("POST", "/p?q=%ff", (("x-e", "\xe9"),))
    assert found.body == body * times
    assert found.answer is not None
    assert (found.answer.status, found.answer.body) == (418, answered * times)


@pytest.mark.parametrize("size", [1, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 1])
def test_bodies_of_bytes_are_encoded_whole(size: int) -> None:
    body = b"\xff" * size
    request = Message(keeps=lambda _: True, method="PUT", target=b"/", body=bytearray(body))
    exchange = Exchange(time=datetime.now(UTC), started_s=0, request=request, is_recorded=True)
    line = json.loads(b"".join(line_pieces(exchange, answers=False, credentials=False)))
    assert base64.b64decode(line["body_base64"]) == body


@pytest.mark.parametrize(
    "name", ["Authorization", "proxy-authorization", "Set-Cookie", "X-API-Key", "apikey",
             "X-Auth-Token", "access_token", "X-Amz-Signature", "session"],
)  # fmt: skip
def test_names_of_credentials(name: str) -> None:
    assert is_credential(name)
    assert without_credentials(f"/p?a=1&{name}=s&b=2") == "/p?a=1&b=2"
    assert without_credentials(f"/p?{name.replace('e', '%65')}=s") == "/p"


@pytest.mark.parametrize("name", ["content-type", "max_tokens", "accept", "author", "keyboard"])
def test_other_names(name: str) -> None:
    assert not is_credential(name)
    assert without_credentials(f"/p?{name}=1") == f"/p?{name}=1"
