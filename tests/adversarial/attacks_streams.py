"""Streams: not read, half sent, without an end, flooded, reset; thousands of them.

The model `parts` gives as many answers as a request asks for. Whatever the healthy client sees, and
the memory that the server takes, are the verdict; an answer to `linear` must also be right.
"""

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random

from tests.adversarial.attack import Attack, Peer, Target
from tests.adversarial.attacks_grpc import RAW, RIGHT, USUAL, asking, field, tensor
from tests.adversarial.http2_bytes import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WIDE_OPEN,
    Heard,
    block,
    frame,
    message,
)

GENERATE = "/v2/models/parts/generate"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
CONNECTIONS = 4
FLOOD_S = 0.5
NO_WINDOW = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
PADDED = 8
USUAL_MESSAGE = message(USUAL)


def parts(count: int, size: int) -> bytes:
    """Encodes a request to the decoupled model."""
    inputs = (tensor("count", "INT64", [1, 1]), tensor("size", "INT64", [1, 1]))
    raw = (field(RAW, struct.pack("<q", count)), field(RAW, struct.pack("<q", size)))
    return message(asking(*inputs, *raw, model="parts"))


def begun(stream: int, *content: bytes) -> bytes:
    """Encodes the begin of a stream, and frames of it."""
    frames = (frame(DATA, 0, stream, one) for one in content)
    return frame(HEADERS, END_HEADERS, stream, block(STREAM_INFER)) + b"".join(frames)


async def _hold(target: Target, seconds: float = FLOOD_S) -> None:
    """Waits, as long as the attack lasts."""
    await asyncio.sleep(seconds)
    target.count("held")


async def unread(target: Target, random: Random) -> None:
    """Asks for answers without end on many streams, and reads none."""
    greeting = random.choice((NO_WINDOW, WIDE_OPEN))
    size = random.choice((10, 10_000, 1_000_000))
    async with AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            peer = await stack.enter_async_context(target.connection(target.grpc_port))
            streams = [begun(stream, parts(10**9, size)) for stream in range(1, 100, 2)]
            await peer.send(greeting, *streams)
        await _hold(target)


async def flood_unread(target: Target, random: Random) -> None:
    """Sends requests on one stream as fast as it can, without a look at windows or answers."""
    one = random.choice((USUAL_MESSAGE, USUAL_MESSAGE, parts(3, 100), message(b"")))
    many = frame(DATA, 0, 1, one * max(1, 16_000 // len(one))) * 16
    async with target.connection(target.grpc_port) as peer:
        await peer.send(random.choice((NO_WINDOW, WIDE_OPEN)), begun(1))
        try:
            async with asyncio.timeout(FLOOD_S):
                while True:
                    await peer.send(many)
        except TimeoutError:
            target.count("flooded")


async def flood_read(target: Target, random: Random) -> None:
    """Sends thousands of requests on some streams, reads all answers, and checks them."""
    streams, requests = random.choice((1, 8)), 1000
    heard = Heard()
    async with target.connection(target.grpc_port) as peer:
        listening = asyncio.create_task(heard.listen(peer, streams))
        numbers = range(1, 2 * streams, 2)
        await peer.send(WIDE_OPEN, *[begun(stream) for stream in numbers])
        for _ in range(requests // 100):
            for stream in numbers:
                await peer.send(frame(DATA, 0, stream, USUAL_MESSAGE * 100))
        await peer.send(*[frame(DATA, END_STREAM, stream) for stream in numbers])
        async with asyncio.timeout(30):
            await listening
    for stream in numbers:
        status, right = heard.statuses.get(stream, "none"), heard.messages.get(stream, b"")
        target.count(status)
        if status == "OK" and right.count(RIGHT) != requests:
            target.wrong(f"{right.count(RIGHT)} of {requests} answers")


async def half_sent(target: Target, random: Random) -> None:
    """Sends the begin of a message on many streams: of a small one, or of one of 60 MiB."""
    size = random.choice((100, 50_000, 60 * 2**20))
    start = b"\x00" + struct.pack(">I", size) + bytes(min(size - 1, random.choice((0, 50, 16_000))))
    async with AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            peer = await stack.enter_async_context(target.connection(target.grpc_port))
            await peer.send(WIDE_OPEN)
            for stream in range(1, 1000, 2):
                await peer.send(begun(stream, start[:16_000]))
        await _hold(target)


async def thousands(target: Target, random: Random) -> None:
    """Opens thousands of streams, some with a request, and says no more."""
    content = random.choice(((), (USUAL_MESSAGE,), (parts(10**9, 10),)))
    async with AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            peer = await stack.enter_async_context(target.connection(target.grpc_port))
            await peer.send(WIDE_OPEN)
            for stream in range(1, 4000, 2):
                await peer.send(begun(stream, *content))
        await _hold(target)


async def rapid_reset(target: Target, random: Random) -> None:
    """Sends a hundred requests on a stream and resets it, again and again."""
    one = random.choice((USUAL_MESSAGE, parts(10**9, 10)))
    async with target.connection(target.grpc_port) as peer:
        await peer.send(WIDE_OPEN)
        stream = 1
        try:
            async with asyncio.timeout(FLOOD_S):
                while True:
                    reset = frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
                    await peer.send(begun(stream, *[one] * 100), reset)
                    stream += 2
        except TimeoutError:
            target.count("reset", stream // 2)


async def mutated(target: Target, random: Random) -> None:
    """Sends messages with changed bytes, prefixes included, cut anywhere, some frames padded."""
    heard = Heard()
    async with target.connection(target.grpc_port) as peer:
        listening = asyncio.create_task(heard.listen(peer, 20))
        await peer.send(WIDE_OPEN)
        for stream in range(1, 41, 2):
            data = bytearray(USUAL_MESSAGE * 20)
            for _ in range(random.randrange(5)):
                data[random.randrange(len(data))] = random.randrange(256)
            await peer.send(begun(stream))
            while data:
                piece = bytes(data[: random.randrange(1, 200)])
                del data[: len(piece)]
                if random.random() < 0.2:
                    await peer.send(frame(DATA, PADDED, stream, b"\xff" + piece + bytes(255)))
                else:
                    await peer.send(frame(DATA, 0, stream, piece))
            await peer.send(frame(DATA, END_STREAM, stream))
        async with asyncio.timeout(30):
            await listening
    for status in heard.statuses.values():
        target.count(status)
        if status in ("INTERNAL", "2"):
            target.wrong(status)


async def slow_reader(target: Target, random: Random) -> None:
    """Opens its window by a few bytes at a time, while models want to go on."""
    step = random.choice((1, 100, 5000))
    async with target.connection(target.grpc_port) as peer:
        await peer.send(NO_WINDOW, begun(1, *[parts(10**9, 1000)] * 20), begun(3, USUAL_MESSAGE))
        for _ in range(100):
            await peer.send(*[_widened(stream, step) for stream in (0, 1, 3)])
            await _drop(peer)
        target.count("read slowly")


def _widened(stream: int, size: int) -> bytes:
    return frame(8, 0, stream, struct.pack(">I", size))


async def _drop(peer: Peer) -> None:
    try:
        async with asyncio.timeout(0.01):
            await peer.reader.read(10_000)
    except TimeoutError:
        pass


async def events_unread(target: Target, random: Random) -> None:
    """Asks for events without end on many connections, and reads none or few of them."""
    size, reads = random.choice((10, 10_000, 1_000_000)), random.choice((0, 1000))
    body = json.dumps({"count": 10**9, "size": size}).encode()
    head = f"POST {GENERATE}_stream HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    async with AsyncExitStack() as stack:
        for _ in range(50):
            peer = await stack.enter_async_context(target.connection(target.http_port, 2**12))
            await peer.send(head.encode(), body)
            if reads:
                await peer.reader.read(reads)
        await _hold(target)


async def hostile_objects(target: Target, random: Random) -> None:
    """Sends objects that are deep, long, of many members, of many or changed inputs."""
    size = random.choice((1000, 31_000, 40_000, 200_000, 500_000))
    unit = random.choice((b"[", b"[],", b"1,", b'"",', b'{"a":', b'"a":1,', b"\\", b'\\"', b"1"))
    start = random.choice((b'{"x":[', b'{"x":', b'{"parameters":{', b'{"id":"', b"{", b'{"text":"'))
    end = random.choice((b"", b"]}", b'"}', b"}", b"1]}"))
    body = start + unit * (size // len(unit)) + end
    model, path = random.choice(("linear", "parts", "texts")), random.choice(("", "_stream"))
    status, _ = await target.post(f"/v2/models/{model}/generate{path}", body)
    if status.startswith("5") and status != "503":
        target.wrong(f"{status} for {start!r} {unit!r} x {size} {end!r}")


_RUNS: dict[str, Callable[[Target, Random], Awaitable[None]]] = {
    "answers without an end, unread": unread,
    "a flood of requests, unread": flood_unread,
    "a flood of requests, read": flood_read,
    "half messages on many": half_sent,
    "thousands of streams": thousands,
    "rapid resets of full streams": rapid_reset,
    "changed and padded messages": mutated,
    "a window that opens by bytes": slow_reader,
}
ATTACKS = [
    *(Attack(f"gRPC streams: {name}", run) for name, run in _RUNS.items()),
    Attack("events: without an end, unread", events_unread),
    Attack("events: hostile objects", hostile_objects),
]
