"""Shapes: ranks beyond any model, inputs that many requests share, and texts in responses.

`scaled` has a scalar, `shared` a table of any length that decides about batches, `shouting` returns
the texts that it is sent.
"""

import asyncio
import json
import struct
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from tests.adversarial.attack import Attack, Peer, Target

MIB = 2**20
READ_BYTES = MIB
SHAPES: tuple[list[Any], ...] = (
    [], [1], [0], [1, 1], [1] * 33, [1] * 65, [1] * 5000, [0] * 64, [2**62, 2**62], [2**31, 2**33],
    [-1], [10**30], [True], [1.0], ["1"], [[]], [None], [2**63 - 1], [0, 2**62],
)  # fmt: skip
DATA: tuple[Any, ...] = ([], [1.0], [[1.0]], 1.0, None, {}, [[]] * 1000, [1.0] * 5000, "1")


def _tensor(name: str, datatype: str, shape: Any, data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


async def ranks(target: Target, random: Random) -> None:
    """Sends a scalar in shapes of any rank and size; a true scalar is still answered."""
    usual = _tensor("x", "FP32", [1, 4], [1.0, 2.0, 3.0, 4.0])
    shape, data = random.choice(SHAPES), random.choice(DATA)
    is_right = shape == [] and data == [1.0]
    asked = {"inputs": [usual, _tensor("factor", "FP32", shape, data)]}
    status, body = await target.post("/v2/models/scaled/infer", json.dumps(asked).encode())
    if status == "200" and not is_right:
        target.wrong(f"a factor of shape {shape} and data {data} was answered with {body[:80]!r}")
    if is_right and status == "200" and b'"data":[1.0,2.0,3.0,4.0]' not in body:
        target.wrong(f"the scalar 1.0 gave {body[:200]!r}")


def _shared(elements: int, value: float) -> bytes:
    """Returns a request to `shared` in binary data: one row, and a table."""
    raw = struct.pack("<f", 1.0) + struct.pack("<f", value) * elements
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {
            "name": "table", "datatype": "FP32", "shape": [elements],
            "parameters": {"binary_data_size": 4 * elements},
        },
    ]  # fmt: skip
    text = json.dumps({"inputs": inputs}).encode()
    lines = [
        "POST /v2/models/shared/infer HTTP/1.1", "host: x",
        f"inference-header-content-length: {len(text)}",
        f"content-length: {len(text) + len(raw)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + text + raw


async def shared_inputs(target: Target, random: Random) -> None:
    """Sends many tables: equal or all different, just small enough to be compared, or huge."""
    elements, callers = random.choice(((1, 64), (4096, 64), (4097, 64), (2 * MIB, 4)))
    is_one = random.choice((True, False))
    bodies = [_shared(elements, 1.0 if is_one else float(n)) for n in range(callers)]
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(target.http_port))
            for _ in range(callers)
        ]

        async def ask(peer: Peer, number: int) -> None:
            await peer.send(bodies[number])
            status, body = await peer.answer()
            target.count(status)
            if status != "200":
                return
            right = elements * (1.0 if is_one else float(number)) + 1.0
            (found,) = json.loads(body)["outputs"][0]["data"]
            if abs(found - right) > 1e-3 * abs(right):
                target.wrong(f"a table with the sum {right} was answered with {found}")

        await asyncio.gather(*(ask(peer, number) for number, peer in enumerate(peers)))


async def texts_back(target: Target, random: Random) -> None:
    """Asks for texts in responses: many, long, empty or no UTF-8; read, left unread, or aborted."""
    count, length = random.choice(((2**16, 1), (2**18, 0), (64, 2**16), (1, 4 * MIB)))
    part = random.choice((b"a", b"\0", b'"', b"\xff", "é".encode()))
    element = (part * length)[:length]
    raw = (struct.pack("<I", len(element)) + element) * count
    inputs = [
        {
            "name": "text", "datatype": "BYTES", "shape": [1, count],
            "parameters": {"binary_data_size": len(raw)},
        }
    ]  # fmt: skip
    binary = {"name": "loud", "parameters": {"binary_data": random.choice((True, False))}}
    text = json.dumps({"inputs": inputs, "outputs": [binary]}).encode()
    lines = [
        "POST /v2/models/shouting/infer HTTP/1.1", "host: x",
        f"inference-header-content-length: {len(text)}",
        f"content-length: {len(text) + len(raw)}", "", "",
    ]  # fmt: skip
    request = "\r\n".join(lines).encode() + text + raw
    is_read = random.choice((True, True, False))
    async with target.connection(target.http_port) as peer:
        await peer.send(request)
        if not is_read:
            await asyncio.sleep(1)
            peer.writer.transport.abort()
            return
        status, body = await peer.answer()
        target.count(status)
        if part == b"\xff" and length and status == "200":
            target.wrong("bytes that are no UTF-8 were answered by a model of text")
        if status == "200" and len(body) < count * (len(element) + 1):
            target.wrong(f"{count} texts of {length} bytes came back in {len(body)} bytes")


ATTACKS = (
    Attack("shapes: scalars of any rank", ranks),
    Attack("shapes: inputs that requests share", shared_inputs),
    Attack("shapes: texts in responses", texts_back),
)
