"""The gRPC client: against a third-party server, and one that closes its connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import numpy as np
import pytest
from grpc import aio

from bench.loads import grpc_shooter
from bench.loads.grpc_shooter import CONNECTIONS, GrpcShooter
from bench.loads.shooter import Outcome
from bench.peers.peer import Ask
from services.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    Fault,
    frame,
    goaway,
    reset,
    settings,
)
from services.wire.http2.headers import STATUS_200, write
from tests.unit.bench.shooting import hang_up, listening, shoot
from tests.unit.wire.http2_wire import message

LARGE = bytes(range(256)) * 2000
"""Larger than a window and many frames."""
Handler = Callable[[bytes, "aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]
Scripted = Callable[[asyncio.StreamWriter, int, int], None]


def asks(*bodies: bytes) -> list[Ask]:
    return [
        Ask(path="/s.S/M", body=body, read=lambda *_: np.zeros(1, np.float32)) for body in bodies
    ]


@contextlib.asynccontextmanager
async def asking(
    handler: Handler, *bodies: bytes, timeout_s: float | None = None
) -> AsyncIterator[GrpcShooter]:
    """Opens a client of grpcio's server."""
    server = aio.server()
    method = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s.S", {"M": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    shooter = GrpcShooter(f"127.0.0.1:{port}", asks(*bodies), timeout_s)
    try:
        yield shooter
    finally:
        await shooter.close()
        await server.stop(None)


async def echo(message: bytes, context: "aio.ServicerContext[bytes, bytes]") -> bytes:
    return message


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Outcome.REFUSED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Outcome.EXPIRED),
        (grpc.StatusCode.INVALID_ARGUMENT, Outcome.WRONG),
        (grpc.StatusCode.NOT_FOUND, Outcome.WRONG),
        (grpc.StatusCode.UNAVAILABLE, Outcome.FAILED),
    ],
)
async def test_a_code_says_how_a_call_ended(code: grpc.StatusCode, outcome: Outcome) -> None:
    async def refuse(message: bytes, context: "aio.ServicerContext[bytes, bytes]") -> bytes:
        await context.abort(code, "because: ä")
        raise AssertionError

    async with asking(refuse, b"x") as shooter:
        for _ in range(2 * CONNECTIONS):
            assert await shoot(shooter) == (outcome, f"{code}: because: ä".encode())


async def test_calls_at_once_get_their_own_answers_however_large() -> None:
    bodies = [b"", b"x", LARGE, LARGE[::-1], b"y" * 60_000]
    async with asking(echo, *bodies) as shooter:
        answers = await asyncio.gather(*(shoot(shooter, number) for number in range(40)))
    assert answers == [(Outcome.ANSWERED, bodies[number % len(bodies)]) for number in range(40)]


async def test_the_server_is_told_how_long_the_caller_waits() -> None:
    async def left(message: bytes, context: "aio.ServicerContext[bytes, bytes]") -> bytes:
        left_s = context.time_remaining()
        return b"none" if left_s is None else b"%d" % round(left_s)

    async with asking(left, b"x") as shooter:
        assert await shoot(shooter) == (Outcome.ANSWERED, b"none")
    async with asking(left, b"x", timeout_s=30.0) as shooter:
        assert await shoot(shooter) == (Outcome.ANSWERED, b"30")


async def test_a_caller_that_leaves_cancels_its_call_and_no_other() -> None:
    cancelled, begun, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(message: bytes, context: "aio.ServicerContext[bytes, bytes]") -> bytes:
        if message == b"waits":
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        await go_on.wait()
        return message

    async with asking(wait, b"waits", b"stays") as shooter, asyncio.timeout(10):
        stays = asyncio.create_task(shoot(shooter, 1))
        leaves = asyncio.create_task(shooter.send_and_leave(0, patience_s=0.2))
        await begun.wait()
        await leaves
        await cancelled.wait()
        go_on.set()
        assert await stays == (Outcome.ANSWERED, b"stays")


async def test_who_leaves_before_the_connection_is_there_asks_nothing() -> None:
    asked: list[bytes] = []

    async def note(message: bytes, context: "aio.ServicerContext[bytes, bytes]") -> bytes:
        asked.append(message)
        return message

    async with asking(note, b"leaves", b"stays") as shooter:
        await shooter.send_and_leave(0, patience_s=0)
        for _ in range(CONNECTIONS):  # the connection it would have gone over is among these
            assert await shoot(shooter, 1) == (Outcome.ANSWERED, b"stays")
    assert asked == [b"stays"] * CONNECTIONS


async def test_nobody_there_is_a_failure() -> None:
    async with listening(hang_up) as address:
        pass
    lonely = GrpcShooter(address, asks(b"x"), None)
    outcome, reason = await shoot(lonely)
    await lonely.close()
    assert outcome is Outcome.FAILED
    assert reason.startswith(b"cannot connect")


class ScriptedServer:
    """Calls a script for each complete call, with its stream and its sequence number."""

    def __init__(self, script: Scripted) -> None:
        self._script = script
        self.calls = self.connections = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[GrpcShooter]:
        async with listening(self._handle) as address:
            shooter = GrpcShooter(address, asks(b"message"), None)
            try:
                yield shooter
            finally:
                await shooter.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(settings({}))
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        while True:
            high, low, kind, flags, stream = HEAD.unpack(await reader.readexactly(HEAD_BYTES))
            await reader.readexactly(high << 8 | low)
            if kind == DATA and flags & END_STREAM:
                self.calls += 1
                self._script(writer, stream, self.calls)


def answer(stream: int, body: bytes = b"fine") -> bytes:
    return (
        frame(HEADERS, END_HEADERS, stream, STATUS_200)
        + frame(DATA, 0, stream, message(body))
        + frame(HEADERS, END_HEADERS | END_STREAM, stream, write([("grpc-status", "0")]))
    )


@pytest.mark.parametrize("cut", [1, 2, 8, 9, 10, 13, 100])
async def test_an_answer_may_come_in_any_pieces(cut: int) -> None:
    body = bytes(range(200))

    def script(writer: asyncio.StreamWriter, stream: int, number: int) -> None:
        pending.put_nowait((writer, answer(stream, body)))

    async def send_pieces() -> None:
        while True:
            writer, words = await pending.get()
            for start in range(0, len(words), cut):
                writer.write(words[start : start + cut])
                for _ in range(2):  # the client reads the piece
                    await asyncio.sleep(0)

    pending: asyncio.Queue[tuple[asyncio.StreamWriter, bytes]] = asyncio.Queue()
    async with ScriptedServer(script).serving() as shooter:
        sending = asyncio.create_task(send_pieces())
        for _ in range(2 * CONNECTIONS):
            assert await shoot(shooter) == (Outcome.ANSWERED, body)
        sending.cancel()


async def test_what_the_server_had_not_begun_when_it_left_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_shooter, "CONNECTIONS", 1)

    def script(writer: asyncio.StreamWriter, stream: int, number: int) -> None:
        if number == 2:
            writer.write(goaway(1, Fault.NO_ERROR) + answer(1))
        elif number > 2:
            writer.write(answer(stream, b"again"))

    server = ScriptedServer(script)
    async with server.serving() as shooter:
        first, second = await asyncio.gather(shoot(shooter), shoot(shooter))
        assert first == (Outcome.ANSWERED, b"fine")
        assert second == (Outcome.ANSWERED, b"again")
        assert await shoot(shooter) == (Outcome.ANSWERED, b"again")
    assert server.connections == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"", "connection lost"),
        (reset(1, Fault.REFUSED_STREAM), "reset: 7"),
        (frame(HEADERS, 0, 1, STATUS_200), "HEADERS of more than one frame"),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), ""),
    ],
)
async def test_a_call_that_gets_no_answer_has_failed(words: bytes, reason: str) -> None:
    def script(writer: asyncio.StreamWriter, stream: int, number: int) -> None:
        if number > 1:
            writer.write(answer(stream))
            return
        writer.write(words)
        if not words:
            writer.close()

    async with ScriptedServer(script).serving() as shooter:
        outcome, why = await shoot(shooter)
        assert outcome is Outcome.FAILED
        assert why.decode().startswith(reason)
        for _ in range(CONNECTIONS):  # what it makes of one connection is no other's
            assert await shoot(shooter) == (Outcome.ANSWERED, b"fine")
