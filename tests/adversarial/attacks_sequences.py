"""Sequences: thousands that never end, steps that race, ids and controls of any kind.

`few` is a running sum that begins at 100, of 4,096 open sequences at most, which end when idle for
five seconds. An honest sequence beside the attack must keep its sum.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from tests.adversarial.attack import Attack, Peer, Target

NEVER_ENDING = 10_000
CONNECTIONS = 16
PIPELINED = 25
"""Requests of a connection that wait for their answers."""
RACING = 100
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2**64 - 1, 2**64, 1.5, True, False, None, "", "0", "a" * 128, "a" * 129, "\0",
    "é" * 64, "\u2028", "x" * 100_000, [1], {}, "18446744073709551616", "0x10", " 1", "1e3", "٣",
)  # fmt: skip


def _body(value: float, **parameters: Any) -> bytes:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def _request(body: bytes) -> bytes:
    return b"POST /v2/models/few/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


async def _step(peer: Peer, value: float, **parameters: Any) -> tuple[str, float]:
    """Sends a step; returns the status, and the sum if it was answered with one."""
    await peer.send(_request(_body(value, **parameters)))
    status, body = await peer.answer()
    total = json.loads(body)["outputs"][0]["data"][0] if status == "200" else 0.0
    return status, total


async def never_ending(target: Target, random: Random) -> None:
    """Starts 10,000 sequences that go on for ever; an honest one keeps its state among them."""
    first, own = random.randrange(2**32), random.randrange(2**40, 2**41)

    async def start_many(peer: Peer, numbers: range) -> None:
        for begin in range(numbers.start, numbers.stop, PIPELINED):
            some = range(begin, min(begin + PIPELINED, numbers.stop))
            await peer.send(
                *(_request(_body(1, sequence_id=first + n + 1, sequence_start=True)) for n in some)
            )
            for _ in some:
                target.count(await peer.status())

    async with AsyncExitStack() as stack:
        honest, *peers = [
            await stack.enter_async_context(target.connection(target.http_port))
            for _ in range(CONNECTIONS + 1)
        ]
        status, _ = await _step(honest, 1, sequence_id=own, sequence_start=True)
        each = NEVER_ENDING // CONNECTIONS
        parts = [range(n * each, (n + 1) * each) for n in range(CONNECTIONS)]
        flood = asyncio.gather(*map(start_many, peers, parts))
        total = 101.0
        while not flood.done() and status == "200":
            status, found = await _step(honest, 1, sequence_id=own)
            total += 1
            if (status, found) != ("200", total):
                target.wrong(f"the honest sequence was answered {status} {found}, not {total}")
        await flood


async def racing_steps(target: Target, random: Random) -> None:
    """Sends the steps of one sequence from many connections at once: each adds to the sum once."""
    own = random.randrange(2**41, 2**42)
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(target.http_port))
            for _ in range(RACING)
        ]
        status, _ = await _step(peers[0], 0, sequence_id=own, sequence_start=True)
        target.count(status)
        if status != "200":  # the others have taken all places
            return
        found = await asyncio.gather(*(_step(peer, 1, sequence_id=own) for peer in peers))
        for status, _ in found:
            target.count(status)
        sums = sorted(total for status, total in found if status == "200")
        if sums != [101.0 + n for n in range(len(sums))]:
            target.wrong(f"{len(sums)} racing steps were answered {sums[:5]} to {sums[-5:]}")
        await _step(peers[0], 0, sequence_id=own, sequence_end=True)


async def wild_parameters(target: Target, random: Random) -> None:
    """Sends ids and controls of any type and size."""
    names = ("sequence_id", "sequence_start", "sequence_end")
    given = {name: random.choice(VALUES) for name in names if random.random() < 0.8}
    if random.random() < 0.5:
        given |= {"sequence_start": True, "sequence_end": random.random() < 0.5}
    status, body = await target.post("/v2/models/few/infer", _body(1, **given))
    if status not in ("200", "400", "409", "503"):
        target.wrong(f"{str(given)[:100]} was answered {status} {body[:80]!r}")
    name = given.get("sequence_id")
    if status == "200" and not (isinstance(name, int | str) and str(name).isdigit()):
        target.wrong(f"{name!r:.60} was taken as an id")


ATTACKS = (
    Attack("sequences: 10,000 that never end", never_ending),
    Attack("sequences: steps that race", racing_steps),
    Attack("sequences: parameters of any kind", wild_parameters),
    Attack("split: 10,000 sequences that never end", never_ending, "split"),
)
