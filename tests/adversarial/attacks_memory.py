"""Bytes that a server has to hold: endless bodies, compression bombs, unread responses."""

import asyncio
import contextlib
import gzip
import struct
import time
import zlib
from contextlib import AsyncExitStack
from random import Random

from tests.adversarial.attack import Attack, Peer, Target
from tests.adversarial.http2_bytes import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GRPC_INFER,
    HEADERS,
    PREFACE,
    REFLECTION,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    data_frames,
    frame,
    message,
)

INFER = "/v2/models/linear/infer"
MIB = 2**20
CONNECTIONS = 200
RISING = [64 * 1024 * 2**step for step in range(8)]
"""Sizes of bodies, from 64 KiB to 8 MiB."""
OPEN_PATHS = ("/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json")


def head(method: str, path: str, *fields: str) -> bytes:
    """Returns the head of an HTTP/1 request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *fields, "", ""]).encode()


async def _until_over(target: Target) -> None:
    """Keeps its connections open until the attack is over."""
    await asyncio.sleep(max(0.0, target.ends_at - time.monotonic()))


async def _outcome(target: Target, peer: Peer) -> None:
    """Counts a response that is there, or arrives within a second."""
    try:
        async with asyncio.timeout(1):
            target.count(await peer.status())
    except TimeoutError:
        target.count("waits")


async def _hold_many(
    target: Target, port: int, first: bytes, piece: bytes, trickle: bytes, limit_bytes: int
) -> None:
    """Opens many connections that send `first`, pieces up to a limit, and then hardly anything."""
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(port)) for _ in range(CONNECTIONS)
        ]

        async def hold(peer: Peer) -> None:
            try:
                await peer.send(first)
                for _ in range(limit_bytes // max(1, len(piece))):
                    if target.over:
                        break
                    await peer.send(piece)
                while not target.over:
                    await peer.send(trickle)
                    await asyncio.sleep(0.2)
            except ConnectionError:
                target.count("closed")

        await asyncio.gather(*map(hold, peers))


async def unfinished_bodies(target: Target, random: Random) -> None:
    """Announces bodies of 64 MiB, sends a part, and then trickles."""
    size = random.choice((64 * 1024, MIB, 8 * MIB))
    first = head("POST", INFER, f"content-length: {64 * MIB}", f"x-api-key: {target.key}")
    await _hold_many(target, target.http_port, first, b" " * 65_536, b" ", size)


async def unfinished_chunks(target: Target, random: Random) -> None:
    """Does the same, in chunks."""
    size = random.choice((64 * 1024, MIB, 8 * MIB))
    first = head("POST", INFER, "transfer-encoding: chunked")
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    await _hold_many(target, target.http_port, first, chunk, b"1\r\n \r\n", size)


async def unfinished_heads(target: Target, random: Random) -> None:
    """Sends heads that do not end."""
    field = f"x-{random.randrange(10**6)}: ".encode() + b"y" * 900 + b"\r\n"
    first = head("POST", INFER)[:-2]
    await _hold_many(target, target.http_port, first, field, b"", 60_000)


async def unfinished_messages(target: Target, random: Random) -> None:
    """Sends gRPC messages that do not end, one on a connection or many."""
    streams = random.choice((1, 20))
    first = PREFACE + frame(SETTINGS, 0, 0)
    for stream in range(1, 2 * streams, 2):
        first += frame(HEADERS, END_HEADERS, stream, block(GRPC_INFER))
        first += frame(DATA, 0, stream, b"\x00" + struct.pack(">I", 60 * MIB))
    piece = b"".join(frame(DATA, 0, s, bytes(8192)) for s in range(1, 2 * streams, 2))
    trickle = frame(DATA, 0, 1, b"\x00")
    size = random.choice((MIB, 8 * MIB))
    await _hold_many(target, target.grpc_port, first, piece, trickle, size)


async def unfinished_blocks(target: Target, _: Random) -> None:
    """Sends gRPC header blocks that do not end."""
    first = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, block(GRPC_INFER))
    piece = frame(CONTINUATION, 0, 1, b"\x00\x01a\x7f\x81\x7d" + b"y" * 16_000)
    await _hold_many(target, target.grpc_port, first, piece, b"", 48_000)


async def calls_without_messages(target: Target, random: Random) -> None:
    """Opens thousands of calls on a connection without a message."""
    first = PREFACE + frame(SETTINGS, 0, 0)
    coded = block(GRPC_INFER)
    async with AsyncExitStack() as stack:
        for _ in range(random.choice((1, 20))):
            peer = await stack.enter_async_context(target.connection(target.grpc_port))
            await peer.send(first)
            for begin in range(1, 8000, 400):
                if target.over:
                    break
                streams = range(begin, begin + 400, 2)
                await peer.send(*(frame(HEADERS, END_HEADERS, s, coded) for s in streams))
        await _until_over(target)


async def strangers_with_bodies(target: Target, random: Random) -> None:
    """Sends bodies without a key, or with a wrong one; each must be refused before it arrives."""
    field = random.choice(("x-none: 1", "x-api-key: wrong", "authorization: Bearer a.b.c"))
    more = random.choice(("x: 1", "expect: 100-continue"))
    first = head("POST", INFER, f"content-length: {64 * MIB}", field, more)
    async with AsyncExitStack() as stack:
        for _ in range(50):
            peer = await stack.enter_async_context(target.connection(target.http_port))
            await peer.send(first)
            await _outcome(target, peer)
    if target.outcomes["waits"] or target.outcomes["100"]:
        target.wrong(f"a stranger was not refused at the head: {field}, {more}")


async def open_paths_with_bodies(target: Target, random: Random) -> None:
    """Sends bodies to public paths; each must be answered before it arrives."""
    path = random.choice(OPEN_PATHS)
    fields = random.choice(
        ((f"content-length: {64 * MIB}",), (f"content-length: {64 * MIB}", "expect: 100-continue"))
    )
    async with AsyncExitStack() as stack:
        for _ in range(50):
            peer = await stack.enter_async_context(target.connection(target.http_port))
            await peer.send(head(random.choice(("GET", "POST")), path, *fields))
            await _outcome(target, peer)
    if target.outcomes["waits"] or target.outcomes["100"]:
        target.wrong(f"{path} was not answered at the head")


async def strangers_with_messages(target: Target, random: Random) -> None:
    """Sends unauthenticated messages, for calls that require a key and for those that do not."""
    path = random.choice(
        (GRPC_INFER, "/inference.GRPCInferenceService/ModelMetadata", REFLECTION,
         "/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ServerLive")
    )  # fmt: skip
    first = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, block(path))
    first += frame(DATA, 0, 1, b"\x00" + struct.pack(">I", 60 * MIB))
    await _hold_many(
        target, target.grpc_port, first, frame(DATA, 0, 1, bytes(16_384)),
        frame(DATA, 0, 1, b"\x00"), 4 * MIB,
    )  # fmt: skip


async def reflection_unread(target: Target, random: Random) -> None:
    """Calls reflection with a window of 0, without a credential."""
    question = message(b"\x22\x24inference.GRPCInferenceService.Model"[:2] + b"i" * 36)
    listing = message(b"\x3a\x00")
    by_name = message(b"\x22\x1e" + b"inference.GRPCInferenceService")
    no_window = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    coded = block(REFLECTION)
    async with AsyncExitStack() as stack:
        for _ in range(random.choice((1, 10))):
            peer = await stack.enter_async_context(target.connection(target.grpc_port))
            await peer.send(PREFACE, no_window)
            for stream in range(1, 801, 2):
                if target.over:
                    break
                asked = (by_name + listing + question) * 15
                await peer.send(
                    frame(HEADERS, END_HEADERS, stream, coded), frame(DATA, 0, stream, asked)
                )
        await _until_over(target)


async def pipelines_unread(target: Target, random: Random) -> None:
    """Pipelines unauthenticated requests with responses of 20 KB and more, and reads none."""
    path = random.choice(("/openapi.json", "/docs"))
    asked = head("GET", path) * 64

    async def flood() -> None:
        async with target.connection(target.http_port) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not target.over:
                try:
                    async with asyncio.timeout(0.5):
                        await peer.send(asked)
                except TimeoutError:
                    continue
                except ConnectionError:
                    target.count("closed")
                    return

    await asyncio.gather(*(flood() for _ in range(100)))


async def bombs(target: Target, random: Random) -> None:
    """Sends small bodies that inflate to 60 MiB, many at once, over both ports."""
    packed = gzip.compress(bytes([random.randrange(32, 127)]) * (60 * MIB), 9)
    deflated = zlib.compress(b" " * (60 * MIB), 9)

    async def post(body: bytes, encoding: str) -> None:
        fields = (
            f"content-length: {len(body)}",
            f"content-encoding: {encoding}",
            "inference-header-content-length: 2",  # parsing of such JSON is not tested here
        )
        async with target.connection(target.http_port) as peer:
            await peer.send(head("POST", INFER, *fields), body)
            target.count(await peer.status())

    async def call() -> None:
        async with target.connection(target.grpc_port) as peer:
            coded = block(GRPC_INFER, ("grpc-encoding", "gzip"))
            await peer.send(PREFACE, frame(SETTINGS, 0, 0), frame(HEADERS, END_HEADERS, 1, coded))
            await peer.send(data_frames(1, message(packed, 1)), frame(DATA, END_STREAM, 1))
            while not target.over and await peer.reader.read(65_536):
                pass

    await asyncio.gather(
        *(post(packed, "gzip") for _ in range(10)),
        *(post(deflated, "deflate") for _ in range(10)),
        *(call() for _ in range(10)),
    )


async def calls_unread(target: Target, random: Random) -> None:
    """Calls over gRPC with a window of 0, so that responses wait."""
    from protos import open_inference_pb2 as pb

    asked = pb.ModelInferRequest(model_name="linear", raw_input_contents=[bytes(16)])
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    path, content = random.choice(
        (
            (GRPC_INFER, message(asked.SerializeToString())),
            ("/inference.GRPCInferenceService/ModelMetadata", message(b"\x0a\x06linear")),
        )
    )
    no_window = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))

    async def flood() -> None:
        async with target.connection(target.grpc_port) as peer:
            await peer.send(PREFACE, no_window, frame(WINDOW_UPDATE, 0, 0, b"\x7f\x00\x00\x00"))
            for stream in range(1, 4001, 2):
                if target.over:
                    break
                await peer.send(
                    frame(HEADERS, END_HEADERS, stream, block(path)),
                    frame(DATA, END_STREAM, stream, content),
                )
            await _until_over(target)

    await asyncio.gather(*(flood() for _ in range(8)))


async def _send_unfinished(target: Target, peer: Peer, size: int, count: int) -> None:
    """Sends gRPC messages of which the first `size` bytes arrive, each in a call of its own."""
    part = b"\x00" + struct.pack(">I", 60 * MIB) + bytes(size)
    coded = block(GRPC_INFER)
    with contextlib.suppress(ConnectionError):
        await peer.send(
            PREFACE, frame(SETTINGS, 0, 0), frame(WINDOW_UPDATE, 0, 0, b"\x3f\x00\x00\x00")
        )
        for stream in range(1, 2 * count, 2):
            if target.over:
                break
            await peer.send(frame(HEADERS, END_HEADERS, stream, coded), data_frames(stream, part))


async def many_messages_a_connection(target: Target, random: Random) -> None:
    """Sends thousands of unfinished messages on a connection: evicted connections have many."""
    size = random.choice((3_000, 9_000, 30_000))
    async with AsyncExitStack() as stack:
        for _ in range(random.choice((1, 3))):
            peers = [
                await stack.enter_async_context(target.connection(target.grpc_port))
                for _ in range(20)
            ]
            await asyncio.gather(*(_send_unfinished(target, one, size, 3_900) for one in peers))


async def messages_then_large(target: Target, random: Random) -> None:
    """Sends many small messages on connections that are reset, then bodies that need memory."""
    size = random.choice((8_300, 12_000))
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(target.grpc_port)) for _ in range(18)
        ]
        count = 390 * MIB // size // len(peers)
        await asyncio.gather(*(_send_unfinished(target, one, size, count) for one in peers))
        for peer in peers:
            peer.writer.transport.abort()
    await asyncio.sleep(random.choice((0.0, 1.2, 3.0)))
    kind = random.choice(("bombs", "bodies", "rising bodies"))
    if kind == "bombs":
        await bombs(target, random)
        return
    sizes = [random.choice((8 * MIB, 30 * MIB))] if kind == "bodies" else RISING
    first = head("POST", INFER, f"content-length: {60 * MIB}")
    async with AsyncExitStack() as stack:
        for size in sizes:
            for _ in range(480 * MIB // len(sizes) // size):
                peer = await stack.enter_async_context(target.connection(target.http_port))
                with contextlib.suppress(ConnectionError):
                    await peer.send(first, bytes(size))
        await asyncio.sleep(0.5)


ATTACKS = (
    Attack("memory: unfinished bodies", unfinished_bodies),
    Attack("memory: unfinished bodies of callers with a key", unfinished_bodies, "keyed"),
    Attack("memory: unfinished chunks", unfinished_chunks),
    Attack("memory: unfinished heads", unfinished_heads),
    Attack("memory: unfinished messages", unfinished_messages),
    Attack("memory: unfinished header blocks", unfinished_blocks),
    Attack("memory: calls without messages", calls_without_messages),
    Attack("memory: strangers with bodies", strangers_with_bodies, "keyed"),
    Attack("memory: open paths with bodies", open_paths_with_bodies, "keyed"),
    Attack("memory: strangers with messages", strangers_with_messages, "keyed"),
    Attack("memory: reflection unread", reflection_unread),
    Attack("memory: reflection unread by strangers", reflection_unread, "keyed"),
    Attack("memory: bombs", bombs),
    Attack("memory: many messages a connection", many_messages_a_connection),
    Attack("memory: messages, then large bodies", messages_then_large),
    Attack("memory: pipelines unread", pipelines_unread),
    Attack("memory: calls unread", calls_unread),
)
