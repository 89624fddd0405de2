"""Unauthenticated clients of the training service: heads, unread answers, followers of jobs."""

import asyncio
import contextlib
import json
from contextlib import AsyncExitStack
from random import Random

from tests.adversarial.attack import Attack, Peer, Target
from tests.fixtures.servers import ROOT

CONNECTIONS = 200
"""Twice as many, while those before are found to have left, are fewer than `max_connections`."""
RECIPE = (ROOT / "training/recipes/digits_cnn.yaml").read_text(encoding="utf-8")


def _head(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: x", *fields, "", ""]).encode()


async def many_heads(target: Target, random: Random) -> None:
    """Sends heads of very many short headers, each another one, on one connection."""
    fields = [f"{number:x}: 0" for number in range(random.choice((40, 240)))]
    async with target.connection(target.http_port) as peer:
        for number in range(300):
            if target.over:
                break
            await peer.send(_head("/v1/health/live", *fields, f"x-number: {number}"))
            target.count(await peer.status())


async def unfinished_heads(target: Target, random: Random) -> None:
    """Sends heads of very many headers that do not end, on many connections."""
    size = random.choice((1, 200))
    head = _head("/v1/jobs", *(f"x-{number}: {'y' * size}" for number in range(245)))[:-2]
    await _hold(target, head, 1.0)


async def schemas_unread(target: Target, random: Random) -> None:
    """Pipelines requests for the schema of recipes, and reads no answer."""
    await _hold(target, _head("/v1/recipe.schema.json") * random.choice((1, 32)), 1.0)


async def followers_that_leave(target: Target, random: Random) -> None:
    """Follows a job on many connections, some with further requests behind, and leaves."""
    asked = json.dumps({"recipe": RECIPE}).encode()
    status, said = await target.post("/v1/jobs", asked, "idempotency-key: one")
    if status != "202":
        target.wrong(f"the job was not accepted: {status} {said[:200]!r}")
        return
    follow = _head(f"/v1/jobs/{json.loads(said)['id']}/events?follow=true")
    await _hold(target, follow * random.choice((1, 5)), random.choice((0.0, 0.1, 1.0)))


async def _hold(target: Target, sent: bytes, seconds: float) -> None:
    """Sends bytes on many connections, reads nothing, and closes or resets them after a while."""
    async with AsyncExitStack() as stack:
        peers: list[Peer] = []
        for _ in range(CONNECTIONS):
            peer = await stack.enter_async_context(target.connection(target.http_port))
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peers.append(peer)
            with contextlib.suppress(ConnectionError):
                await peer.send(sent)
        await asyncio.sleep(seconds)
        for peer in peers[::2]:
            peer.writer.transport.abort()


ATTACKS = (
    Attack("trainer: many heads", many_heads, "trainer"),
    Attack("trainer: unfinished heads", unfinished_heads, "trainer"),
    Attack("trainer: schemas unread", schemas_unread, "trainer"),
    Attack("trainer: followers that leave", followers_that_leave, "trainer"),
)
