"""A server's stop: connections send GOAWAY, and close after the response to their last call."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, StreamEnded

from services.wire.http2.frames import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PING,
    PREFACE,
    SETTINGS,
    Fault,
    frame,
    reset,
    window_update,
)
from services.wire.http2.grpc_connection import PARTING_S, GrpcConnection
from services.wire.http2.grpc_port import GrpcPort
from services.wire.open_port import PortServer
from tests.unit.wire.http2_wire import (
    GREETING,
    Service,
    Wire,
    at,
    begin,
    call,
    fields,
    make_port,
    message,
    wire,
)
from tests.unit.wire.http_wire import on_loop, settle

WAIT_S = 10.0


def lasts(w: Wire) -> list[int]:
    """Returns the last stream id of each GOAWAY."""
    return [int.from_bytes(one.payload[:4], "big") for one in w.frames(GOAWAY)]


def parted(w: Wire) -> bytes:
    """The answer to our PING."""
    (ping,) = [one for one in w.frames(PING) if not one.flags & ACK]
    return frame(PING, ACK, 0, ping.payload)


def held(*streams: int) -> bytes:
    """Calls that are answered when the test says so."""
    return b"".join(call(stream, path="/t/Held") for stream in streams)


async def test_goaway_twice_with_a_ping_between() -> None:
    service = Service()
    w = wire(service)
    w.send(held(1))
    w.connection.close_if_idle()
    w.connection.close_if_idle()
    assert [one.kind for one in w.frames()[-2:]] == [GOAWAY, PING]
    assert lasts(w) == [MAX_WINDOW]
    # What was on its way is taken.
    w.send(held(3) + call(5))
    await settle()
    assert w.answers()[5].status == 0
    w.send(frame(PING, ACK, 0, b"another."))
    assert lasts(w) == [MAX_WINDOW]
    w.send(parted(w))
    assert lasts(w) == [MAX_WINDOW, 5]
    w.send(parted(w))
    assert (lasts(w), w.ended) == ([MAX_WINDOW, 5], False)
    for one in service.held:
        one.release()
    assert [w.answers()[stream].status for stream in (1, 3)] == [0, 0]
    assert (w.ended, service.abandoned) == (True, [])


@pytest.mark.parametrize("answers_ping", [True, False])
async def test_calls_behind_the_last_goaway_are_passed_over(answers_ping: bool) -> None:
    """Whatever belongs to them; their caller knows that they were not begun."""
    service = Service()
    w = wire(service)
    w.send(held(1))
    w.connection.close_if_idle()
    if answers_ping:
        w.send(parted(w))
    else:
        at(w, PARTING_S - 0.1)
        assert lasts(w) == [MAX_WINDOW]
        at(w, PARTING_S + 0.1)
    assert lasts(w) == [MAX_WINDOW, 1]
    w.send(begin(3, "/t/Held") + window_update(3, 10) + frame(DATA, END_STREAM, 3, message(b"x")))
    w.send(begin(5) + reset(5, Fault.CANCEL))
    assert len(service.opened) == 1
    assert lasts(w) == [MAX_WINDOW, 1], "that was no fault"
    assert service.abandoned == []
    service.held[0].release()
    assert w.answers()[1].status == 0
    assert list(w.answers()) == [1]


async def test_calls_behind_the_last_goaway_keep_the_table_in_step() -> None:
    """Their fields are read: calls under way may have trailers that name what they brought."""
    w = wire()
    w.send(begin(1, "/t/All"))
    w.connection.close_if_idle()
    w.send(parted(w))
    entry = b"\x40\x01a\x01b"
    w.send(frame(HEADERS, 0x4, 3, entry))
    w.send(frame(HEADERS, 0x5, 1, b"\xbe"))
    assert w.answers()[1].status == 0
    assert w.ended


async def test_last_answer_before_the_ping_is_answered() -> None:
    service = Service()
    w = wire(service)
    w.send(held(1))
    w.connection.close_if_idle()
    service.held[0].release()
    assert w.answers()[1].status == 0
    assert lasts(w) == [MAX_WINDOW, 1]
    assert w.ended
    w.send(parted(w) + held(3))
    assert len(service.opened) == 1


async def test_caller_that_breaks_off_the_last_call() -> None:
    w = wire()
    w.send(held(1))
    w.connection.close_if_idle()
    # Nothing is said behind the end, whatever comes in the same breath.
    w.send(reset(1, Fault.CANCEL) + call(3) + frame(PING, 0, 0, b"12345678"))
    assert lasts(w) == [MAX_WINDOW, 1]
    assert w.ended


async def test_ping_of_that_name_before_we_leave() -> None:
    w = wire()
    w.send(frame(PING, ACK, 0, b"flambeau") + call(1))
    assert w.answers()[1].status == 0
    assert lasts(w) == []


@pytest.mark.parametrize("sent", [b"", PREFACE[:4]])
async def test_connection_without_a_preface_is_greeted_first(sent: bytes) -> None:
    """It may have been made just now; a server's first words are its SETTINGS."""
    w = wire(greeting=sent)
    w.connection.close_if_idle()
    assert [one.kind for one in w.frames()][::2] == [SETTINGS, GOAWAY]
    assert w.ended


# All connections of a port.


def port_of(service: Service) -> tuple[GrpcPort, PortServer]:
    """Returns a port and its server, which does not listen."""
    port = make_port(service)
    return port, PortServer(port, partial(GrpcConnection, port))


async def test_stop_answers_what_is_in_flight() -> None:
    service = Service()
    port, server = port_of(service)
    idle, busy = Wire(port), Wire(port)
    idle.send(GREETING + call(1))
    busy.send(GREETING + held(1))
    stopping = asyncio.create_task(server.stop(WAIT_S))
    await settle()
    assert (idle.ended, busy.ended) == (True, False)
    idle.lose()
    await settle()
    assert not stopping.done()
    service.held[0].release()
    assert busy.answers()[1].status == 0
    busy.lose()
    await asyncio.wait_for(stopping, WAIT_S)
    assert service.abandoned == []


async def test_stop_gives_up_after_the_grace() -> None:
    service = Service()
    port, server = port_of(service)
    w = Wire(port)
    w.send(GREETING + held(1))
    await asyncio.wait_for(server.stop(0), WAIT_S)
    assert (w.aborted, service.abandoned) == (True, service.held)


# The same on sockets.


class Caller:
    """A connection of h2's, over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection()
        self.h2.initiate_connection()

    def call(self, content: bytes, path: str = "/t/Echo") -> None:
        """Sends a call."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, fields(path))
        self.h2.send_data(stream, message(content), end_stream=True)
        self.writer.write(self.h2.data_to_send())

    async def until(self, kind: type[Any]) -> None:
        """Reads on, up to an event."""
        async with asyncio.timeout(WAIT_S):
            while data := await self.reader.read(65_536):
                events = self.h2.receive_data(data)
                self.writer.write(self.h2.data_to_send())
                if any(isinstance(event, kind) for event in events):
                    return
        raise AssertionError(f"the server hung up before {kind.__name__}")


@contextlib.asynccontextmanager
async def running(service: Service, **limits: Any) -> AsyncIterator[tuple[PortServer, int]]:
    """Runs a server on a free port."""
    port = make_port(service, **limits)
    server = PortServer(port, partial(GrpcConnection, port))
    listening = socket.create_server(("127.0.0.1", 0))
    number = listening.getsockname()[1]
    await server.start(listening)
    try:
        yield server, number
    finally:
        await server.stop(0)


def test_stop_on_sockets() -> None:
    async def test() -> None:
        service = Service()
        async with running(service) as (server, number):
            idle, busy = [
                Caller(*await asyncio.open_connection("127.0.0.1", number)) for _ in range(2)
            ]
            idle.call(b"x")
            await idle.until(StreamEnded)
            busy.call(b"x" * 10_000, "/t/Held")
            busy.call(b"x")
            await busy.until(StreamEnded)
            stopping = asyncio.create_task(server.stop(WAIT_S))
            await idle.until(ConnectionTerminated)
            assert await idle.reader.read() == b""
            idle.writer.close()
            assert not stopping.done()
            service.held[0].release()
            async with asyncio.timeout(WAIT_S):
                rest = await busy.reader.read()
            assert b"x" * 10_000 in rest
            busy.writer.close()
            await asyncio.wait_for(stopping, WAIT_S)

    on_loop(test)


def test_peer_on_a_socket_that_says_nothing_or_http_1() -> None:
    async def test() -> None:
        async with running(Service(), receive_timeout_s=0.05) as (_, number):
            for sent, words in ((b"", b""), (b"GET / HTTP/1.1\r\n\r\n", b"400 Bad Request")):
                reader, writer = await asyncio.open_connection("127.0.0.1", number)
                writer.write(sent)
                async with asyncio.timeout(WAIT_S):
                    assert words in await reader.read()
                writer.close()

    on_loop(test)
