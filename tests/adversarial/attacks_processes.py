"""Attacks on the link between the processes of a server: full, or left in the middle.

When an attack is over, no block of the shared memory may stay taken.
"""

import asyncio
import contextlib
import gzip
import json
import resource
import struct
import time
from collections.abc import Awaitable
from functools import cache
from random import Random

from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_answers import grpc_message
from tests.adversarial.http2_bytes import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GRPC_INFER,
    HEADERS,
    RST_STREAM,
    WIDE_OPEN,
    block,
    data_frames,
    frame,
)
from tests.adversarial.victim import TYPED
from tests.fixtures.servers import ServerProcess

MIB = 2**20
INSIDE_BYTES = 8192
"""Largest tensor that takes a place in a message, not a block."""
LONGEST_S = 8.0
"""Seconds of a round at most, without what the server needs to answer."""
FREED_WITHIN_S = 20.0
CONNECTIONS = 3000
"""Below the server's limit for REST and gRPC together, whichever edge gets them."""
SPARE_FILES = 200
CANCEL = 8
BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


@cache
def _request(sizes: tuple[int, ...], zipped: bool) -> bytes:
    """Returns a request to `typed`, whose inputs have some of these bytes, for the first of them.

    Args:
        sizes: bytes of each input, or of all if there is one; multiples of 8.
        zipped: compresses the body.
    """
    inputs, data = [], b""
    for datatype, size in zip(TYPED, sizes, strict=True):
        element = 8 if datatype == "FP64" else int("".join(filter(str.isdigit, datatype))) // 8
        inputs.append(
            {"name": f"in_{datatype}", "datatype": datatype, "shape": [1, size // element],
             "parameters": {"binary_data_size": size}}
        )  # fmt: skip
        data += b"\x40" * size
    wanted = {"name": "out_INT8", "parameters": {"binary_data": True}}
    text = json.dumps({"inputs": inputs, "outputs": [wanted]}).encode()
    body = gzip.compress(text + data, 1) if zipped else text + data
    lines = [
        "POST /v2/models/typed/infer HTTP/1.1", "host: x",
        f"inference-header-content-length: {len(text)}", f"content-length: {len(body)}",
        *(["content-encoding: gzip"] if zipped else []), "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + body


def _large(size: int, zipped: bool) -> bytes:
    return _request((size, *[8] * (len(TYPED) - 1)), zipped)


async def _exchange(target: Target, request: bytes, size: int, unread_s: float) -> None:
    """Sends a request, leaves its answer unread for a while, and checks it."""
    async with target.connection(target.http_port) as peer:
        await peer.send(request)
        await asyncio.sleep(unread_s)
        status, body = await peer.answer()
        target.count(status)
        if status == "200" and not body.endswith(b"\x40" * size):
            target.wrong(f"{size} bytes came back changed")
        elif status not in ("200", "503", "429", "closed"):
            target.wrong(f"{size} bytes were answered with {status}: {body[:200]!r}")


async def full_arena(target: Target, random: Random) -> None:
    """Sends tensors whose sum exceeds the shared memory; their answers stay unread for a while."""
    size, callers = random.choice(((60 * MIB, 12), (4 * MIB, 100), (MIB // 8, 400)))
    await asyncio.gather(
        *(_exchange(target, _large(size, True), size, 2 * random.random()) for _ in range(callers))
    )
    await _freed(target)


async def full_ring(target: Target, random: Random) -> None:
    """Sends the largest messages without a block from hundreds of clients at once."""
    request = _request((INSIDE_BYTES,) * len(TYPED), False)
    ends_at = min(target.ends_at, time.monotonic() + LONGEST_S)

    async def ask() -> None:
        while True:
            await _exchange(target, request, INSIDE_BYTES, 0.0)
            if time.monotonic() > ends_at:
                return

    await _all([ask() for _ in range(random.choice((50, 300)))])


async def left_requests(target: Target, random: Random) -> None:
    """Leaves in the middle of large requests over REST, while they are sent, copied, or run."""
    request = _large(random.choice((1, 20, 60)) * MIB, False)

    async def ask(share: float, pause_s: float) -> None:
        async with target.connection(target.http_port) as peer:
            await peer.send(request[: int(share * len(request))])
            await asyncio.sleep(pause_s)
            peer.writer.transport.abort()

    await _all([ask(random.choice((0.5, 1, 1)), random.random() / 5) for _ in range(8)])
    await _freed(target)


async def left_answers(target: Target, random: Random) -> None:
    """Leaves in the middle of large answers over REST."""
    size = random.choice((1, 20, 60)) * MIB

    async def ask(share: float) -> None:
        async with target.connection(target.http_port) as peer:
            await peer.send(_large(size, True))
            async with asyncio.timeout(LONGEST_S):
                with contextlib.suppress(asyncio.IncompleteReadError):
                    await peer.reader.readexactly(int(share * size) + 1)
            peer.writer.transport.abort()

    await _all([ask(random.random()) for _ in range(8)])
    await _freed(target)


async def left_calls(target: Target, random: Random) -> None:
    """Cancels large calls over gRPC, on one connection, at any moment."""
    asked = grpc_message(False)
    head = block(GRPC_INFER, ("grpc-encoding", "gzip"))
    async with target.connection(target.grpc_port) as peer:
        await peer.send(WIDE_OPEN)
        for stream in range(1, 17, 2):
            await peer.send(
                frame(HEADERS, END_HEADERS, stream, head),
                data_frames(stream, asked),
                frame(DATA, END_STREAM, stream),
            )
            await asyncio.sleep(random.random() / 5)
            await peer.send(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))
            target.count("cancelled")
    await _freed(target)


async def connections(target: Target, random: Random) -> None:
    """Opens thousands of connections, some with half a request; others still get their answers."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    head = b"POST /v2/models/linear/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 76\r\n\r\n{"
    async with contextlib.AsyncExitStack() as stack:
        for number in range(min(CONNECTIONS, files - SPARE_FILES)):
            port, first = random.choice(((target.http_port, head), (target.grpc_port, WIDE_OPEN)))
            peer = await stack.enter_async_context(target.connection(port))
            if random.random() < 0.5:
                await peer.send(first)
            if number % 100 == 0:
                status, body = await target.post("/v2/models/linear/infer", BODY)
                if status != "200":
                    target.wrong(f"{status} beside {number} connections: {body[:200]!r}")


async def _all(coroutines: list[Awaitable[None]]) -> None:
    """Waits for all; what becomes of a connection is counted already."""
    for found in await asyncio.gather(*coroutines, return_exceptions=True):
        if isinstance(found, BaseException) and not isinstance(found, OSError):
            raise found


async def _freed(target: Target) -> None:
    """Waits until no tensor is in the shared memory."""
    server, give_up_at = target.server, time.monotonic() + FREED_WITHIN_S
    assert isinstance(server, ServerProcess)
    while left := await asyncio.to_thread(server.metric, "flambeau_link_bytes"):
        if time.monotonic() > give_up_at:
            target.wrong(f"{left:g} bytes of shared memory stay taken")
            return
        await asyncio.sleep(0.05)


ATTACKS = (
    Attack("processes: shared memory full of tensors", full_arena, "processes"),
    Attack("processes: shared memory full of messages", full_ring, "processes"),
    Attack("processes: clients that leave large requests", left_requests, "processes"),
    Attack("processes: clients that leave large answers", left_answers, "processes"),
    Attack("processes: cancelled large calls", left_calls, "processes"),
    Attack("processes: connections by the thousand", connections, "processes"),
)
