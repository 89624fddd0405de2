"""Limits on a connection's cost: calls, incomplete bytes, fields, turns of the event loop."""

import asyncio
import gzip
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from services.wire.body import Body
from services.wire.http2.connection import (
    CALLS_A_TURN,
    FRAMES_A_TURN,
    MAX_CALLS,
)
from services.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    Fault,
    frame,
    reset,
    settings,
    window_update,
)
from services.wire.http2.grpc_connection import UNFINISHED_MESSAGES
from services.wire.http2.grpc_port import DROPPED_A_TURN
from services.wire.http2.headers import MAX_BLOCK_BYTES
from tests.unit.wire.http2_wire import (
    GREETING,
    Service,
    Wire,
    begin,
    block,
    call,
    fields,
    make_port,
    message,
    wire,
)
from tests.unit.wire.http_wire import MAX_REQUEST_BYTES, refusals, settle

RESOURCE_EXHAUSTED = 8
LIMIT = UNFINISHED_MESSAGES * MAX_REQUEST_BYTES


# Connections and calls.


async def test_connections_beyond_the_limit_are_closed_without_a_word() -> None:
    """A greeting would have their callers come back at once."""
    port = make_port(max_connections=2)
    wires = [Wire(port) for _ in range(4)]
    for w in wires[:2]:
        w.send(GREETING + call(1))
        assert w.answers()[1].status == 0
    assert [(w.aborted, w.output) for w in wires[2:]] == [(True, b"")] * 2
    assert refusals(port) == 2
    await settle()
    wires[0].lose()
    later = Wire(port)
    later.send(GREETING + call(1))
    assert later.answers()[1].status == 0


async def test_calls_beyond_the_limit_are_refused_so_that_they_may_be_sent_again() -> None:
    service = Service()
    w = wire(service)
    streams = range(1, 2 * MAX_CALLS + 6, 2)
    for stream in streams:
        w.send(call(stream, path="/t/Held"))
        if stream % 50 == 1:
            await settle()
    await settle()
    assert len(service.opened) == MAX_CALLS
    assert [answer.reset for answer in w.answers().values()] == [Fault.REFUSED_STREAM] * 3
    service.held[0].release()
    w.send(call(streams[-1] + 2))
    await settle()
    assert w.answers()[streams[-1] + 2].status == 0


# Bytes.


def sent_of(stream: int, data: bytes) -> bytes:
    """DATA of a call, in frames."""
    pieces = [data[at : at + 16_000] for at in range(0, len(data), 16_000)]
    return b"".join(frame(DATA, 0, stream, piece) for piece in pieces)


async def fill(w: Wire, stream: int, size: int, path: str = "/t/Echo", whole: bool = False) -> None:
    """Sends all of a message except its last byte, or all except the call's end."""
    data = message(b"x" * size)
    w.send(begin(stream, path) + sent_of(stream, data if whole else data[:-1]))
    await settle()


@pytest.mark.parametrize("whole", [False, True])
async def test_unfinished_bytes_are_limited(whole: bool) -> None:
    """Bytes of incomplete messages, and of complete messages of incomplete calls."""
    service = Service()
    w = wire(service)
    for index in range(UNFINISHED_MESSAGES):
        await fill(w, 2 * index + 1, MAX_REQUEST_BYTES - 100, whole=whole)
    assert not w.answers()
    await fill(w, 51, 10_000, whole=whole)
    answer = w.answers()[51]
    assert answer.status == RESOURCE_EXHAUSTED
    assert f"has sent {LIMIT} bytes" in answer.words
    assert answer.fields["retry-after"] == "1"
    # The others go on, and what they held is given back.
    for stream in (1, 3):
        w.send(frame(DATA, END_STREAM, stream, b"" if whole else b"x"))
    w.send(reset(5, Fault.CANCEL))
    await settle()
    assert len(service.abandoned) == 1
    assert 0 < w.connection.unfinished_bytes <= MAX_REQUEST_BYTES
    await fill(w, 53, MAX_REQUEST_BYTES)
    assert 53 not in w.answers()
    w.lose()
    assert w.connection.unfinished_bytes == 0


class HeldThread:
    """Decompresses when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Body, Callable[[Body], None]]] = []

    def decompress(
        self, body: Body, encoding: str, max_bytes: int, *, done: Callable[[Body], None], **_: Any
    ) -> None:
        assert encoding == "gzip"
        self.waiting.append((body, done))


async def test_compressed_messages_that_wait_for_a_thread_are_limited() -> None:
    service = Service()
    w = wire(service)
    thread: Any = HeldThread()
    w.connection.port.compression = thread
    noise = bytes(range(256)) * 400
    packed = gzip.compress(noise, 0, mtime=0)
    for stream in range(1, 41, 2):
        w.send(begin(stream, "/t/Held", grpc_encoding="gzip"))
        w.send(sent_of(stream, message(packed, 1)) + frame(DATA, END_STREAM, stream))
        await settle()
    refused = [a for a in w.answers().values() if a.status == RESOURCE_EXHAUSTED]
    assert len(refused) >= 10
    for body, done in thread.waiting:
        done(gzip.decompress(body))
    assert w.connection.unfinished_bytes == 0
    assert len(service.held) + len(refused) == 20


async def test_answered_call_that_is_not_taken_collects_nothing() -> None:
    """Its status waits for the caller's window; what the caller goes on to say is dropped."""
    w = wire(greeting=PREFACE + settings({INITIAL_WINDOW_SIZE: 0}))
    w.send(begin(1, "/t/All") + frame(DATA, 0, 1, message(b"a") + message(b"b", 7)))
    tracemalloc.start()
    for _ in range(100):
        w.send(frame(DATA, 0, 1, b"\x00" + b"\x00\xff\xff\xff" + b"x" * 16_000))
        await settle()
    collected, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert collected < 100_000, "of 1.6 MB"
    assert w.connection.unfinished_bytes == 0
    w.send(frame(DATA, END_STREAM, 1))
    w.send(settings({INITIAL_WINDOW_SIZE: 100}))
    assert w.answers()[1].messages == [b"a"]
    assert w.answers()[1].status == 3
    assert w.answers()[1].reset is None


async def test_answers_that_are_not_taken_are_limited() -> None:
    """A peer that takes none of them begins no more calls, until it does."""
    w = wire(greeting=PREFACE + settings({INITIAL_WINDOW_SIZE: 0}))
    size = MAX_REQUEST_BYTES // 2
    stream = iter(range(1, 1000, 2))
    for _ in range(2 * UNFINISHED_MESSAGES):
        one = next(stream)
        w.send(begin(one) + sent_of(one, message(b"x" * size)) + frame(DATA, END_STREAM, one))
        await settle()
    assert not any(answer.ended for answer in w.answers().values())
    for flags in (0, END_STREAM):
        one = next(stream)
        w.send(begin(one, flags=flags))
        answer = w.answers()[one]
        assert answer.status == RESOURCE_EXHAUSTED
        assert f"{LIMIT} bytes of answers" in answer.words
    w.send(reset(1, Fault.CANCEL))
    w.send(window_update(0, LIMIT) + window_update(3, LIMIT))
    one = next(stream)
    w.send(call(one, b""))
    await settle()
    assert w.answers()[one].status is None, "it waits for its own window"
    w.send(window_update(one, 100))
    assert w.answers()[one].status == 0
    w.lose()
    assert w.connection.sending.unsent_bytes == 0


# Fields.


async def test_fields_over_the_limit_end_the_connection() -> None:
    """Those of a block that is small as it is sent."""
    entry = b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000
    w = wire()
    w.send(frame(HEADERS, END_HEADERS, 1, entry + b"\xbe" * 20))
    told = w.last_words()
    assert told is not None
    assert told[0] == Fault.COMPRESSION_ERROR


@pytest.mark.parametrize("payload", [b"", b"\x00", b"x" * 1000])
async def test_flood_of_continuations(payload: bytes) -> None:
    w = wire()
    w.send(frame(HEADERS, 0, 1, block(fields())))
    sent = 0
    while w.last_words() is None:
        w.send(frame(CONTINUATION, 0, 1, payload) * 10)
        sent += 10 * (9 + len(payload))
        await settle()
        assert sent < 2 * MAX_BLOCK_BYTES
    assert w.last_words() == (Fault.ENHANCE_YOUR_CALM, f"metadata over {MAX_BLOCK_BYTES} bytes")


# Turns of the loop.


async def turns(w: Wire, sent: bytes) -> int:
    """Counts turns of the loop until the frame behind it is answered."""
    w.send(sent + frame(PING, 0, 0, b"the last"))
    count = 0
    while not w.output.endswith(frame(PING, ACK, 0, b"the last")):
        assert not w.ended
        await asyncio.sleep(0)
        count += 1
    return count


async def test_loop_has_its_turn_among_calls() -> None:
    service = Service()
    w = wire(service)
    w.send(b"".join(call(2 * index + 1) for index in range(5 * CALLS_A_TURN)))
    assert len(service.opened) == CALLS_A_TURN - 1  # to read the head counts as one, too
    await asyncio.sleep(0)
    assert len(service.opened) == 2 * CALLS_A_TURN - 1
    w.send(b"")
    w.send(frame(PING, 0, 0, b"12345678"))
    assert len(service.opened) == 2 * CALLS_A_TURN - 1, "what comes meanwhile waits its turn"
    await settle()
    assert len(service.opened) == 5 * CALLS_A_TURN
    assert [answer.status for answer in w.answers().values()] == [0] * 5 * CALLS_A_TURN
    assert w.frames()[-1].kind == PING


async def test_heads_that_are_new_and_refusals_count_as_calls() -> None:
    """To read six fields takes as long as to begin a call, and so does to say why not."""
    service = Service()
    w = wire(service)
    new = [call(2 * index + 1, x_number=str(index)) for index in range(2 * CALLS_A_TURN)]
    w.send(b"".join(new))
    assert len(service.opened) == CALLS_A_TURN // 2
    await settle()
    refused = [call(2 * index + 1001, grpc_timeout="x") for index in range(2 * CALLS_A_TURN)]
    service.refused.clear()
    w.send(b"".join(refused))
    assert len(service.refused) == math.ceil(CALLS_A_TURN / 3)


@pytest.mark.parametrize(
    "one", [frame(99, 0, 0), frame(PING, 0, 0, b"12345678"), frame(DATA, 0, 1), call(1)]
)
async def test_loop_has_its_turn_among_frames(one: bytes) -> None:
    w = wire()
    w.send(call(1))
    frames = 5 * FRAMES_A_TURN
    assert await turns(w, one * (frames // one.count(one[:9]))) >= 4


async def test_calls_that_are_broken_off_at_once_take_turns_too() -> None:
    service = Service()
    w = wire(service)
    both = (call(s, path="/t/Held") + reset(s, Fault.CANCEL) for s in range(1, 400, 2))
    assert await turns(w, b"".join(both)) >= 200 // CALLS_A_TURN
    assert len(service.abandoned) == 200


async def test_calls_of_lost_connections_are_dropped_in_turns() -> None:
    """Among all that are lost in a turn: a fleet of callers may go at once."""
    service = Service()
    port = make_port(service)
    wires = [Wire(port) for _ in range(5)]
    for w in wires:
        w.send(GREETING)
        for stream in range(1, 4 * DROPPED_A_TURN, 2):
            w.send(begin(stream, "/t/Held"))
            await asyncio.sleep(0)
    await settle()
    for w in wires:
        w.lose()
    assert len(service.abandoned) == DROPPED_A_TURN
    assert service.open_calls == 0, "none is answered any more"
    assert port.turns.is_busy, "a busy loop takes new connections faster"
    await asyncio.sleep(0)
    assert len(service.abandoned) == 2 * DROPPED_A_TURN
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(service.abandoned) == 10 * DROPPED_A_TURN


def late(stream: int) -> bytes:
    """Encodes a header block of a call that has its status."""
    return frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields()))


async def test_header_blocks_that_begin_nothing_take_turns_as_calls_do() -> None:
    w = wire()
    w.send(call(1))
    assert await turns(w, late(1) * 200) >= 200 // CALLS_A_TURN


async def test_settings_that_move_all_calls_take_a_turn_each() -> None:
    w = wire(greeting=PREFACE + settings({INITIAL_WINDOW_SIZE: 0}))
    w.send(call(1))
    assert await turns(w, settings({INITIAL_WINDOW_SIZE: 0}) * 50) >= 49
    await settle()
    w.send(settings({INITIAL_WINDOW_SIZE: 100}))
    await settle()
    assert await turns(w, settings({INITIAL_WINDOW_SIZE: 0}) * 50) == 0, "nothing waits"


@pytest.mark.parametrize("more", [b"\x90" * 1000, b"\x00\x01a\xff\x81\x7c" + b"\x18" * 16_000])
@pytest.mark.parametrize("stream", [1, 3])
async def test_many_fields_or_long_ones_take_a_turn(stream: int, more: bytes) -> None:
    """They take the loop's time, whether they begin a call or come behind one."""
    w = wire()
    w.send(call(1))
    many = frame(HEADERS, END_HEADERS | END_STREAM, stream, block(fields()) + more)
    assert await turns(w, many * 15) >= 6
    assert w.last_words() is None


@pytest.mark.parametrize("one", [frame(PING, 0, 0, b"12345678"), settings({})])
async def test_frames_that_are_answered_take_more_of_a_turn(one: bytes) -> None:
    assert await turns(wire(), one * FRAMES_A_TURN) >= 8


async def test_message_that_fills_new_memory_takes_more_of_a_turn() -> None:
    """The system provides up to 2 MiB at a time; what a large message has is not moved."""
    size = 2**24
    w = wire(max_request_bytes=size)
    w.send(begin(1, "/t/Held") + frame(DATA, 0, 1, b"\x00" + size.to_bytes(4, "big")))
    worked = []
    for _ in range(250):
        before_us = w.connection.port.turns.worked_us
        w.send(frame(DATA, 0, 1, bytes(65_000)))
        worked.append(w.connection.port.turns.worked_us - before_us)
        while w.connection.port.turns.worked_us:
            await settle()
            w.connection.port.turns.count(0)
            w.connection.port.turns.worked_us = 0
    assert 1000 < max(worked) < 1100  # a huge page fills a turn
    assert sorted(worked)[125] < 100, "most pieces fit in"
