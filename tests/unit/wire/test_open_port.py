"""An HTTP/1 port on real sockets and a real event loop."""

import asyncio
import contextlib
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from services.telemetry.metrics import Metrics
from services.wire.http1.connection import HttpConnection
from services.wire.http1.port import HttpPort
from services.wire.loop_turns import WORK_A_TURN_US
from services.wire.open_port import PortServer
from tests.unit.wire.http_wire import (
    MAX_REQUEST_BYTES,
    Answer,
    Echo,
    make_budget,
    make_limits,
    make_port,
    on_loop,
    read_answers,
    request,
    said,
)

WAIT_S = 10.0


class Signalling(Echo):
    """An echo that signals when a request is held or abandoned."""

    __slots__ = ()
    happened: asyncio.Event

    def begin(self, body: Any) -> None:
        """Tells."""
        super().begin(body)
        self.happened.set()

    def abandon(self) -> None:
        """Tells."""
        super().abandon()
        self.happened.set()


class Running:
    """A server on a free port."""

    def __init__(self, tls: ssl.SSLContext | None, limits: dict[str, Any]) -> None:
        lists = {"held": [], "abandoned": [], "refused": [], "happened": asyncio.Event()}
        self.route: type[Echo] = type("_Echo", (Signalling,), {"__slots__": (), **lists})
        self.happened: asyncio.Event = lists["happened"]  # type: ignore[assignment]
        bounds = make_limits(**limits)
        port = HttpPort(lambda _: self.route, bounds, Metrics("test"), make_budget())
        self.connections, self.turns = port.connections, port.turns
        self.server = PortServer(port, partial(HttpConnection, port), tls)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a client connection."""
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)

    async def ask(self, sent: bytes) -> list[Answer]:
        """Returns the responses until the server closes the connection."""
        reader, writer = await self.connect()
        writer.write(sent)
        return await everything(reader, writer)

    async def next_event(self) -> None:
        """Until the server has begun or abandoned something."""
        async with asyncio.timeout(WAIT_S):
            await self.happened.wait()
        self.happened.clear()


async def everything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[Answer]:
    async with asyncio.timeout(WAIT_S):
        data = await reader.read()
    writer.close()
    return read_answers(data)


@contextlib.asynccontextmanager
async def running(tls: ssl.SSLContext | None = None, **limits: Any) -> AsyncIterator[Running]:
    one = Running(tls, limits)
    await one.server.start(one.socket)
    try:
        yield one
    finally:
        await one.server.stop(0)


CLOSE: dict[str, Any] = {"connection": "close"}


def test_request_and_answer() -> None:
    async def test() -> None:
        async with running() as server:
            answers = await server.ask(request(body=b"a") + request(body=b"b", **CLOSE))
            assert [answer.body for answer in answers] == [said(b"a"), said(b"b")]
            large = b"x" * (MAX_REQUEST_BYTES - 1)
            (answer,) = await server.ask(request(body=large, **CLOSE))
            assert answer.body == said(large)

    on_loop(test)


def test_refusal_reaches_a_peer_that_goes_on_sending() -> None:
    async def test() -> None:
        async with running() as server:
            body = b"x" * (MAX_REQUEST_BYTES + 1)
            for sent in (request(body=body), b"nonsense\r\n\r\n" + body):
                (answer,) = await server.ask(sent)
                assert answer.status in (413, 400)
                assert answer.header("connection") == "close"

    on_loop(test)


def test_burst_of_callers_while_the_loop_is_busy_connects_at_once() -> None:
    callers = min(1_500, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    with contextlib.ExitStack() as opened:

        async def test() -> None:
            async with running() as server:
                for _ in range(callers):  # without giving the loop a turn
                    caller = opened.enter_context(socket.socket())
                    caller.settimeout(0.5)  # a second is what one waits that is not let in
                    caller.connect(("127.0.0.1", server.port))

        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        on_loop(test)


def test_busy_turn_takes_several_of_those_who_wait() -> None:
    """Connections with short turns are served one after the other without delay."""
    callers = 100

    async def test() -> None:
        with contextlib.ExitStack() as opened:
            async with running() as server:
                for _ in range(callers):
                    caller = opened.enter_context(socket.socket())
                    caller.connect(("127.0.0.1", server.port))
                turns = 0
                while len(server.connections) < callers:
                    server.turns.count(WORK_A_TURN_US)
                    await asyncio.sleep(0)
                    turns += 1
                assert turns <= callers // 2

    on_loop(test)


def test_slow_request_is_given_up() -> None:
    async def test() -> None:
        async with running(receive_timeout_s=0.05) as server:
            for start in (b"POST /echo HTT", request(body=b"abc")[:-1]):
                (answer,) = await server.ask(start)
                assert answer.status == 408

    on_loop(test)


def test_idle_connection_is_closed() -> None:
    async def test() -> None:
        async with running(keep_alive_timeout_s=0.05) as server:
            assert await server.ask(b"") == []
            assert len(await server.ask(request())) == 1

    on_loop(test)


def test_peer_that_hangs_up() -> None:
    async def test() -> None:
        async with running() as server:
            _, writer = await server.connect()
            writer.write(request("/held"))
            await server.next_event()
            (held,) = server.route.held
            writer.close()
            await server.next_event()
            assert server.route.abandoned == [held]
            held.release()

    on_loop(test)


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells a peer's state")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("resets", [False, True])
def test_peer_that_leaves_while_it_is_not_read(run: Callable[[Any], None], resets: bool) -> None:
    async def test() -> None:
        async with running(keep_alive_timeout_s=0.2) as server:  # what sets the time of a sweep
            server.route.is_alone = True
            _, writer = await server.connect()
            writer.write(request("/held") * 2)
            await server.next_event()
            if resets:
                writer.transport.abort()
            writer.close()
            await server.next_event()
            assert server.route.abandoned == server.route.held
            assert not server.connections

    run(test())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_peer_that_ends_its_direction_has_left(run: Callable[[Any], None]) -> None:
    async def test() -> None:
        async with running() as server:
            reader, writer = await server.connect()
            writer.write(request() + request("/held"))
            await server.next_event()
            writer.write_eof()
            await server.next_event()
            assert server.route.abandoned == server.route.held
            server.route.held[0].release()
            assert len(await everything(reader, writer)) == 1, "the one before it"

    run(test())


def test_peer_that_does_not_read_is_not_read_from_and_given_up() -> None:
    async def test() -> None:
        async with running(receive_timeout_s=0.2) as server:
            reader, writer = await server.connect()
            # The reader's own limit stops it; then the kernel's buffers fill, then ours.
            one = request(body=b"x" * 100_000)
            sent = 0
            with contextlib.suppress(OSError):
                async with asyncio.timeout(WAIT_S):
                    while True:
                        writer.write(one)
                        sent += len(one)
                        await writer.drain()
            assert sent < 100 * 2**20
            async with asyncio.timeout(WAIT_S):
                with contextlib.suppress(OSError):
                    while await reader.read(2**20):
                        pass

    on_loop(test)


def test_too_many_connections() -> None:
    async def test() -> None:
        async with running(max_connections=1) as server:
            reader, writer = await server.connect()
            (answer,) = await server.ask(request())
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            writer.write(request(body=b"first", **CLOSE))
            (answer,) = await everything(reader, writer)
            assert answer.body == said(b"first")
            (answer,) = await server.ask(request(**CLOSE))
            assert answer.status == 200

    on_loop(test)


def test_stop_answers_what_is_in_flight() -> None:
    async def test() -> None:
        async with running() as server:
            idle_reader, idle_writer = await server.connect()
            idle_writer.write(request())
            await server.next_event()
            reader, writer = await server.connect()
            writer.write(request("/held", b"kept"))
            await server.next_event()
            stopping = asyncio.create_task(server.server.stop(WAIT_S))
            (answer,) = await everything(idle_reader, idle_writer)
            assert answer.header("connection") is None
            with pytest.raises(OSError, match=r"refused|reset|closed"):
                await server.connect()
            assert not stopping.done()
            server.route.held[0].release()
            (answer,) = await everything(reader, writer)
            assert (answer.body, answer.header("connection")) == (said(b"kept", "/held"), "close")
            await asyncio.wait_for(stopping, WAIT_S)

    on_loop(test)


def test_stop_gives_up_after_the_grace() -> None:
    async def test() -> None:
        async with running() as server:
            reader, writer = await server.connect()
            writer.write(request("/held"))
            await server.next_event()
            await asyncio.wait_for(server.server.stop(0.05), WAIT_S)
            assert len(server.route.abandoned) == 1
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    on_loop(test)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Creates a certificate and its key, for 127.0.0.1."""
    file = tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", file, "-out", tmp_path / "public.pem", "-days", "2",
         "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_text(file.read_text() + (tmp_path / "public.pem").read_text())
    return file


def test_tls(certificate: Path) -> None:
    async def test() -> None:
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ours.load_cert_chain(certificate)
        theirs = ssl.create_default_context(cafile=certificate)
        async with running(tls=ours) as server:
            reader, writer = await server.connect(theirs)
            large = b"x" * 150_000
            for body in (b"small", large):
                writer.write(request(body=body))
            writer.write(request(body=large, **CLOSE))
            answers = await everything(reader, writer)
            assert [a.body for a in answers] == [said(b"small"), said(large), said(large)]
            reader, writer = await server.connect(theirs)
            writer.write(b"nonsense\r\n\r\n")
            assert (await everything(reader, writer))[0].status == 400

    on_loop(test)


def test_sweeps_that_take_long_take_turns() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        turns = 0
        swept: dict[object, int] = {}
        all_swept = asyncio.Event()
        port = make_port(Echo, keep_alive_timeout_s=0.2)

        class Slow(HttpConnection):
            __slots__ = ()

            def sweep(self) -> None:
                time.sleep(0.002)
                swept.setdefault(self, turns)
                if len(swept) == 4:
                    all_swept.set()

        def count() -> None:
            nonlocal turns
            turns += 1
            if not all_swept.is_set():
                loop.call_soon(count)

        server = PortServer(port, partial(Slow, port))
        listening = socket.create_server(("127.0.0.1", 0))
        await server.start(listening)
        writers = [(await asyncio.open_connection(*listening.getsockname()))[1] for _ in range(4)]
        count()
        async with asyncio.timeout(WAIT_S):
            await all_swept.wait()
        assert len(set(swept.values())) == 4, "one connection in each turn"
        for writer in writers:
            writer.close()
        await server.stop(WAIT_S)

    on_loop(body)


def test_fault_in_a_sweep_ends_no_later_one() -> None:
    async def body() -> None:
        swept = asyncio.Event()
        faults: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: faults.append(str(context["exception"]))
        )
        port = make_port(Echo, keep_alive_timeout_s=0.01)

        class Faulty(HttpConnection):
            __slots__ = ()

            def sweep(self) -> None:
                if faults:
                    swept.set()
                else:
                    raise ZeroDivisionError("ours")

        server = PortServer(port, partial(Faulty, port))
        listening = socket.create_server(("127.0.0.1", 0))
        await server.start(listening)
        _, writer = await asyncio.open_connection(*listening.getsockname())
        async with asyncio.timeout(WAIT_S):
            await swept.wait()
        assert faults == ["ours"]
        writer.close()
        await server.stop(WAIT_S)

    on_loop(body)
