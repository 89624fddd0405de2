"""HTTP/1 in slices: bytes that are cheap to send, in pieces that are expensive to read.

Each attack is run over one, four or 64 connections at once.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random

from tests.adversarial.attack import Attack, Peer, Target

INFER = b"/v2/models/linear/infer"
PATHS = (INFER, b"/v2/health/live", b"/v2/models/linear", b"/v2/models/%s" % (b"%41" * 40), b"/no")
READ_BYTES = 64 * 1024
_STATUS = re.compile(rb"HTTP/1.1 ([0-9]{3})")

Send = Callable[[Target, Peer, Random], Awaitable[None]]


def over_many(send: Send) -> Callable[[Target, Random], Awaitable[None]]:
    """Returns the attack of one connection, run over several at once."""

    async def one(target: Target, random: Random) -> None:
        async with target.connection(target.http_port) as peer:
            reading = asyncio.create_task(read_away(target, peer))
            try:
                await send(target, peer, random)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def run(target: Target, random: Random) -> None:
        width = random.choice((1, 4, 64))
        seeds = [Random(random.random()) for _ in range(width)]
        await asyncio.gather(*(one(target, seed) for seed in seeds))

    return run


async def read_away(target: Target, peer: Peer) -> None:
    """Counts responses by their status, as long as they arrive."""
    try:
        while data := await peer.reader.read(READ_BYTES):
            for status in _STATUS.findall(data):  # a status split between two reads is not counted
                target.count(status.decode())
    except ConnectionError:
        target.count("closed")


def head(random: Random, *lines: bytes, path: bytes = b"") -> bytes:
    """Returns the head of a POST or GET."""
    start = b"POST %b HTTP/1.1" % (path or random.choice(PATHS))
    return b"\r\n".join([start, b"host: x", *lines, b"", b""])


async def send_for_a_while(target: Target, peer: Peer, piece: bytes, mib: float = 8) -> None:
    """Repeats some bytes, in writes that fill a read."""
    many = piece * max(1, READ_BYTES // max(1, len(piece)))
    for _ in range(max(1, int(mib * 2**20 / len(many)))):
        if target.over:
            return
        await peer.send(many)


async def small_chunks(target: Target, peer: Peer, random: Random) -> None:
    """Sends a body in chunks of few bytes, optionally with extensions."""
    size = random.choice((1, 1, 2, 15, 16, 17))
    extension = random.choice((b"", b"", b";a", b';a="' + b"b" * 900 + b'"', b";a=b" * 200))
    chunk = b"%x%b\r\n%b\r\n" % (size, extension, b"x" * size)
    await peer.send(head(random, b"transfer-encoding: chunked"))
    await send_for_a_while(target, peer, chunk)
    await peer.send(b"0\r\n\r\n")


async def trailers(target: Target, peer: Peer, random: Random) -> None:
    """Sends consecutive bodies that end with trailers."""
    lines = random.choice((b"a:\r\n", b"a: b\r\n" * 1000, b"a:" + b" " * 1000 + b"\r\n"))
    body = b"1\r\nx\r\n0\r\n" + lines + b"\r\n"
    await send_for_a_while(target, peer, head(random, b"transfer-encoding: chunked") + body)


async def pipelined(target: Target, peer: Peer, random: Random) -> None:
    """Pipelines requests without reading responses in between."""
    body = random.choice((b"", b"{", b'{"inputs":[]}'))
    fields = random.choice(((), (b"x-request-id: a",), (b"accept-encoding: gzip",)))
    one = head(random, b"content-length: %d" % len(body), *fields) + body
    await send_for_a_while(target, peer, one)


async def large_heads(target: Target, peer: Peer, random: Random) -> None:
    """Sends heads of 64 KiB: of many lines, of one, of a long URL, of a list that is parsed."""
    kind = random.randrange(7)
    room = 64_000
    if kind == 0:
        lines = [b"a%d:" % number for number in range(7500)]
    elif kind == 1:
        lines = [b"x-%d: %b" % (number, b"y" * 240) for number in range(250)]
    elif kind == 2:
        lines = [b"accept-encoding: " + b"," * room]
    elif kind == 3:
        lines = [b"authorization: Bearer " + b"x" * room]
    elif kind == 4:
        lines = [b"x-request-id: " + b"y" * room, b"traceparent: " + b"-" * 500]
    else:
        lines = [b"x: y"]
    path = {5: b"/" + b"%41" * 2700, 6: b"/" + b"/%2f" * 2000}.get(kind, b"")
    await send_for_a_while(target, peer, head(random, b"content-length: 0", *lines, path=path))


async def empty_lines(target: Target, peer: Peer, random: Random) -> None:
    """Sends line ends, alone or before requests."""
    ends = random.choice((b"\r\n", b"\n", b"\r", b"\r\n\r\n")) * random.choice((1, 50, 5000))
    after = random.choice((b"", head(random, b"content-length: 0")))
    await send_for_a_while(target, peer, ends + after)


async def tiny_writes(target: Target, peer: Peer, random: Random) -> None:
    """Sends a request in single bytes, each in a write of its own."""
    body = random.choice((b"", b"{}", b'{"inputs":' + b" " * 300 + b"[]}"))
    lines = [b"content-length: %d" % len(body)] + [b"x-%d: y" % n for n in range(40)]
    for _ in range(100):
        whole = head(random, *lines) + body
        for at in range(len(whole)):
            if target.over:
                return
            await peer.send(whole[at : at + 1])


async def large_bodies(target: Target, peer: Peer, random: Random) -> None:
    """Sends bodies as fast as the server reads them, accepted or refused."""
    fields = random.choice(((), (b"expect: 100-continue",), (b"content-encoding: nothing",)))
    size = random.choice((100_000, 1_000_000, 4_000_000))
    for _ in range(4):
        await peer.send(head(random, b"content-length: %d" % size, *fields))
        await send_for_a_while(target, peer, b"x" * 50_000, size / 2**20)
        if target.over:
            return


ATTACKS = tuple(
    Attack(f"HTTP/1: {name}", over_many(send))
    for name, send in (
        ("chunks of a few bytes", small_chunks),
        ("trailers", trailers),
        ("pipelines", pipelined),
        ("heads of 64 KiB", large_heads),
        ("empty lines", empty_lines),
        ("writes of a byte", tiny_writes),
        ("large bodies", large_bodies),
    )
)
