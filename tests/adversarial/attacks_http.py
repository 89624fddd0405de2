"""HTTP/1 bytes that cost a server more than their sender."""

import asyncio
import contextlib
import gzip
import time
from random import Random

from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_slicing import read_away
from tests.adversarial.http2_bytes import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    block,
    frame,
)

PATH = b"/v2/models/linear/infer"
USUAL = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


async def bare_line_ends(target: Target, random: Random) -> None:
    """Sends only CRLFs, which RFC 9112 (2.2) has a server skip before a request."""
    ends = b"\r\n" * random.choice((1, 1000, 32_000))
    async with target.connection(target.http_port) as peer:
        for _ in range(2_000):
            if target.over:
                break
            await peer.send(ends)
        await peer.send(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        target.count(await peer.status())


async def chunks_that_are_requests(target: Target, random: Random) -> None:
    """Sends bodies with requests as chunks, each in a read of its own; they must remain bodies."""
    inner = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    outer = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % PATH
    async with target.connection(target.http_port) as peer:
        await peer.send(inner)
        target.count(await peer.status())  # now the head is parsed
        await peer.send(outer)
        for _ in range(random.randrange(1, 4)):
            for piece in (b"%x\r\n" % len(inner), inner, b"\r\n"):
                await asyncio.sleep(0.02)  # otherwise the system joins them
                await peer.send(piece)
        await peer.send(b"0\r\n\r\n")
        status = await peer.status()
    target.count(status)
    if status == "200":
        target.wrong("a chunk's content was answered as a request")


async def many_connects(target: Target, random: Random) -> None:
    """Opens hundreds of connections, beside thousands of calls that keep the event loop busy."""
    calls = [frame(HEADERS, END_HEADERS | END_STREAM, s, block("/a/b")) for s in range(1, 800, 2)]

    async def call() -> None:
        with contextlib.suppress(ConnectionError):
            async with target.connection(target.grpc_port) as peer:
                await peer.send(PREFACE, frame(SETTINGS, 0, 0))
                for begin in range(0, len(calls), 20):
                    if target.over:
                        break
                    await peer.send(*calls[begin : begin + 20])
                    await asyncio.sleep(0.02)

    async def connect(stack: contextlib.AsyncExitStack) -> None:
        await stack.enter_async_context(target.connection(target.http_port))

    async with contextlib.AsyncExitStack() as stack:
        together = [call() for _ in range(40)]
        together += [connect(stack) for _ in range(random.choice((100, 400)))]
        await asyncio.gather(*together)


async def zipped_pipelines(target: Target, random: Random) -> None:
    """Pipelines requests of a few hundred bytes that inflate to some 64 KiB each."""
    blanks = b" " * random.choice((8_000, 31_000, 65_000, 66_000))
    body = gzip.compress(random.choice((b"", USUAL)) + blanks)
    one = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\n" % PATH
    one += b"content-length: %d\r\n\r\n" % len(body) + body

    async def flood() -> None:
        async with target.connection(target.http_port) as peer:
            reading = asyncio.create_task(read_away(target, peer))
            try:
                with contextlib.suppress(TimeoutError):  # the server's receive limit
                    async with asyncio.timeout(max(0.0, target.ends_at - time.monotonic())):
                        while True:
                            await peer.send(one * 32)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    await asyncio.gather(*(flood() for _ in range(random.choice((50, 400)))))


ATTACKS = (
    Attack("HTTP/1: nothing but line ends", bare_line_ends),
    Attack("HTTP/1: chunks that are requests", chunks_that_are_requests),
    Attack("HTTP/1: connections by the hundred", many_connects),
    Attack("HTTP/1: pipelines of gzip", zipped_pipelines),
)
