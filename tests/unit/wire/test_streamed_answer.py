"""Streams of answers: the event loop turns while they are sent."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from functools import partial

from services.wire.body import Body
from services.wire.http2 import streamed_answer
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.streamed_answer import StreamedAnswer
from tests.unit.wire.http2_wire import Answer, Service, call, message, wire
from tests.unit.wire.http_wire import settle


async def test_the_loop_turns_while_a_fast_peer_takes_many_messages() -> None:
    turns = itertools.count()
    seen: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    def turn() -> None:
        next(turns)
        if not tasks[0].done():
            asyncio.get_running_loop().call_soon(turn)

    async def messages() -> AsyncGenerator[bytes, None]:
        for _ in range(4 * streamed_answer.MESSAGES_AT_ONCE):
            yield b"x"
        seen.append(next(turns))

    class Streaming(Service):
        def route(self, head: GrpcHead) -> None:
            head.open = partial(StreamedAnswer, start)

    def start(_: Body, answer: StreamedAnswer) -> None:
        tasks.append(answer.answer_with(messages()))
        asyncio.get_running_loop().call_soon(turn)

    w = wire(Streaming())
    w.send(call(1))
    while not w.answers().get(1, Answer()).ended:
        await settle()
    assert seen[0] >= 4
    count = 4 * streamed_answer.MESSAGES_AT_ONCE
    assert w.answers()[1].data == count * message(b"x")
