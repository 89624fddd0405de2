"""Clients of the metrics port that send nothing, too slowly, or what is no scrape."""

import asyncio
import contextlib
import time
from random import Random

from tests.adversarial.attack import Attack, Target
from tests.fixtures.servers import ServerProcess

IDLE = 400
"""Connections: several times the limit of the port."""
ANSWERED_WITHIN_S = 15.0
SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
HEADS = (
    b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: application/openmetrics-text; version=x\r\n\r\n",
    b"GET /metrics?name[]=" + b"a" * 8000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    b"\x00\xff" * 1000 + b"\r\n\r\n",
    b"\r\n",
)


def _port(target: Target) -> int:
    assert isinstance(target.server, ServerProcess)
    return target.server.metrics_port


async def idle_connections(target: Target, random: Random) -> None:
    """Opens far more connections than the port serves, and sends nothing or half of a head."""
    port = _port(target)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(IDLE):
            peer = await stack.enter_async_context(target.connection(port))
            if random.random() < 0.3:
                with contextlib.suppress(ConnectionError):
                    await peer.send(SCRAPE[: random.randrange(1, len(SCRAPE) - 1)])
            if target.over:
                break
    await _scraped(target, port)


async def no_scrapes(target: Target, random: Random) -> None:
    """Sends heads that are long, wrong, or of other methods."""
    port = _port(target)

    async def send(head: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            async with target.connection(port) as peer:
                await peer.send(head)
                target.count(await peer.status())

    await asyncio.gather(*(send(random.choice(HEADS)) for _ in range(40)))
    await _scraped(target, port)


async def _scraped(target: Target, port: int) -> None:
    """Waits until a scrape is answered: those that hold the port must lose it."""
    give_up_at = time.monotonic() + ANSWERED_WITHIN_S
    status = ""
    while time.monotonic() < give_up_at:
        with contextlib.suppress(ConnectionError):
            async with target.connection(port) as peer:
                await peer.send(SCRAPE)
                status = await peer.status()
        if status == "200":
            target.count("scraped")
            return
        await asyncio.sleep(0.1)
    target.wrong(f"no scrape was answered within {ANSWERED_WITHIN_S:g} s, but '{status}'")


ATTACKS = (
    Attack("metrics: idle connections", idle_connections),
    Attack("metrics: what is no scrape", no_scrapes),
)
