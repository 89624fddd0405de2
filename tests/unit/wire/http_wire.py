"""An HTTP port without a network: pieces of bytes in, written bytes out, all on one event loop.

`Echo` answers what it was asked, at once or, for `/held`, when the test says so.
"""

import asyncio
import http.client
import io
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import uvloop

from services.errors import ServingError
from services.telemetry.metrics import Metrics
from services.wire.body import Body
from services.wire.byte_budget import ByteBudget
from services.wire.compression import INLINE_BYTES
from services.wire.http1.connection import HttpConnection
from services.wire.http1.exchange import Exchange, Opener
from services.wire.http1.port import HttpPort
from services.wire.open_port import OpenConnection, OpenPort, PortLimits

MAX_REQUEST_BYTES = 200_000


class Echo(Exchange):
    """Says back the method, the path, the query and the body."""

    __slots__ = ("body",)
    held: "ClassVar[list[Echo]]"
    abandoned: "ClassVar[list[Echo]]"
    refused: ClassVar[list[ServingError]]

    def begin(self, body: Body) -> None:
        """Answers now, or on `release`."""
        self.body = bytes(body)
        if self.head.path == "/held":
            self.held.append(self)
        else:
            self.release()

    def release(self) -> None:
        """Answers."""
        head = self.head
        text = f"{head.method} {head.path}?{head.query.decode()} {len(self.body)}:".encode()
        self.respond(200, b"x-echo: yes\r\n", [text, self.body])

    def refuse(self, error: ServingError) -> None:
        """Keeps the error beside answering with it."""
        self.refused.append(error)
        super().refuse(error)

    def abandon(self) -> None:
        """Remembers."""
        super().abandon()
        self.abandoned.append(self)


def echo_route() -> type[Echo]:
    """Creates an `Echo` class with lists of its own."""
    return type("Echoes", (Echo,), {"__slots__": (), "held": [], "abandoned": [], "refused": []})


class FakeTransport:
    """A transport that records writes and delivers the test's data."""

    def __init__(self, connection: OpenConnection) -> None:
        self.written: list[bytes] = []
        self.write_calls = 0
        self.unsent_bytes = 0
        self.reading = True
        self.ended = self.closed = self.aborted = self.lost = False
        self.unread = b""
        self._connection = connection
        connection.connection_made(self)  # type: ignore[arg-type]

    # What a connection uses of its transport.

    def get_extra_info(self, name: str) -> Any:
        """Returns the peer's address; there is no socket."""
        assert name in ("peername", "socket")
        return ("127.0.0.1", 50_000) if name == "peername" else None

    def write(self, data: bytes) -> None:
        """Keeps it."""
        self.writelines([data])

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Keeps them."""
        assert not self.ended, "written after the end"
        assert not self.lost, "written to nobody"
        self.write_calls += 1
        self.written += [bytes(part) for part in parts]

    def write_eof(self) -> None:
        """Ends our direction."""
        self.ended = True

    def can_write_eof(self) -> bool:
        """Returns True, as TCP does."""
        return True

    def get_write_buffer_size(self) -> int:
        """Returns the bytes that the peer has not read; the test sets them."""
        return self.unsent_bytes

    def pause_reading(self) -> None:
        """Keeps what comes."""
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        """Delivers what was kept, later as a real transport."""
        assert not self.reading
        self.reading = True
        asyncio.get_running_loop().call_soon(self.send, b"")

    def is_closing(self) -> bool:
        """Returns True after `close` or `abort`."""
        return self.closed or self.aborted

    def close(self) -> None:
        """Loses the connection, later as a real transport."""
        if not self.is_closing():
            self.closed = True
            asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        """Behaves as `close`."""
        self.close()
        self.aborted = True

    # What a test does.

    def lose(self) -> None:
        """The peer is gone."""
        if not self.lost:
            self.lost = self.closed = True
            self._connection.connection_lost(None)

    def send(self, data: bytes) -> None:
        """The peer's bytes arrive, as far as they are read."""
        self.unread += data
        while self.unread and self.reading and not self.is_closing():
            buffer = memoryview(self._connection.get_buffer(-1))
            count = min(len(buffer), len(self.unread))
            buffer[:count], self.unread = self.unread[:count], self.unread[count:]
            self._connection.buffer_updated(count)

    @property
    def output(self) -> bytes:
        """Returns all written bytes."""
        return b"".join(self.written)


class Wire(FakeTransport):
    """A transport that speaks HTTP/1."""

    def __init__(self, port: HttpPort) -> None:
        self.connection = HttpConnection(port)
        super().__init__(self.connection)

    def answers(self, methods: Iterable[str] = ()) -> "list[Answer]":
        """Returns all complete responses; HEAD requests need their method in `methods`."""
        return read_answers(self.output, methods)


@dataclass(frozen=True)
class Answer:
    """One response, without the headers that change with time."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Returns a header's value."""
        return dict(self.headers).get(name)


class _Stream:
    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def makefile(self, *_: object, **__: object) -> "_Stream":
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def close(self) -> None:
        """The next answer is read from where this one ended."""


def read_answers(data: bytes, methods: Iterable[str] = ()) -> list[Answer]:
    """Parses a stream of answers with the standard library's client; nothing may be left over."""
    stream, waiting, answers = _Stream(data), list(methods), []
    while stream.file.tell() < len(data):
        method = waiting.pop(0) if waiting else "POST"
        response = http.client.HTTPResponse(stream, method=method)  # type: ignore[arg-type]
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        assert headers.pop("date").endswith(" GMT")
        answers.append(Answer(response.status, tuple(headers.items()), response.read()))
    return answers


def wire(route: Any = None, **limits: Any) -> Wire:
    """Opens a connection to a port of its own."""
    return Wire(make_port(route or echo_route(), **limits))


def make_limits(**limits: Any) -> PortLimits:
    """Limits that no test reaches, but for those it names."""
    roomy = {
        "max_request_bytes": MAX_REQUEST_BYTES,
        "max_connections": 4096,
        "keep_alive_timeout_s": 75.0,
        "receive_timeout_s": 60.0,
    }
    return PortLimits(**(roomy | limits))


def make_budget() -> ByteBudget:
    """Creates a budget that no test reaches."""
    return ByteBudget(2**30)


def make_port(route: Opener, **limits: Any) -> HttpPort:
    """Creates a port that sends every request to one opener."""
    port = HttpPort(lambda _: route, make_limits(**limits), Metrics("test"), make_budget())
    port.tick()
    return port


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test's body on the loop the server runs on."""
    uvloop.run(test())


def request(
    path: str = "/echo",
    body: bytes = b"",
    method: str = "POST",
    version: str = "1.1",
    **headers: Any,
) -> bytes:
    """Builds a request with a Content-Length."""
    lines = [f"{method} {path} HTTP/{version}", "host: test", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes, sizes: Iterable[int], path: str = "/echo", trailer: bytes = b"") -> bytes:
    """Builds a request whose body has chunks of these sizes and a last one with the rest."""
    out = b"POST %b HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode()
    for size in sizes:
        if size and body:
            out += b"%x\r\n%b\r\n" % (len(body[:size]), body[:size])
            body = body[size:]
    if body:
        out += b"%X;name=value\r\n%b\r\n" % (len(body), body)
    return out + b"0\r\n" + trailer + b"\r\n"


def said(body: bytes, path: str = "/echo", method: str = "POST", query: str = "") -> bytes:
    """Returns the response of `Echo`."""
    return f"{method} {path}?{query} {len(body)}:".encode() + body


@contextmanager
def refused(w: Wire, status: int, words: str) -> Iterator[None]:
    """Within the block the peer sends what is refused; then it may still send for a while."""
    yield
    last = w.answers()[-1]
    assert (last.status, last.header("connection")) == (status, "close")
    assert last.header("content-type") == "application/json"
    assert words.encode() in last.body
    assert last.body.startswith(b'{"error":"')
    assert w.ended
    assert not w.closed, "closing now would reset the connection under the answer"
    assert w.reading
    before = w.output
    w.send(request())
    assert w.output == before
    w.connection.connection_lost(None)


def refusals(port: OpenPort) -> float:
    """Returns the number of all counted refusals."""
    (family,) = port.metrics.refusals.collect()
    return sum(sample.value for sample in family.samples)


async def compression_idle(port: HttpPort) -> None:
    """Waits until the compression thread has done all it was given."""
    last: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    port.compression.compress([bytes(INLINE_BYTES + 1)], "gzip", last.set_result)
    await last


async def settle() -> None:
    """Lets everything happen that the loop has been asked for."""
    for _ in range(5):
        await asyncio.sleep(0)
