"""Shared memory: regions that shrink, vanish or are exchanged, and registrations in a storm.

`linear` returns 2 * x; `texts` takes texts of any size.
"""

import asyncio
import contextlib
import json
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_streams import begun
from tests.adversarial.http2_bytes import (
    DATA,
    END_STREAM,
    WIDE_OPEN,
    Heard,
    frame,
    message,
)
from tests.adversarial.victim import ATTACKED_OBJECTS

MIB = 2**20
X = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
RIGHT = [2.0, 4.0, 6.0, 8.0]
ROOT = "/v2/systemsharedmemory/region"
CALLERS = 8


@contextlib.contextmanager
def an_object(size: int) -> Iterator[Path]:
    """Makes an object that begins with `X`, and removes it."""
    file = Path("/dev/shm") / f"{ATTACKED_OBJECTS}{uuid.uuid4().hex}"
    with file.open("wb") as opened:
        opened.write(X[:size])
        opened.truncate(size)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


async def register(target: Target, name: str, key: str, offset: int, size: int) -> str:
    """Registers a region. Returns the status."""
    body = json.dumps({"key": key, "offset": offset, "byte_size": size}).encode()
    return (await target.post(f"{ROOT}/{name}/register", body))[0]


def asking(name: str, size: int, output: dict[str, Any] | None = None) -> bytes:
    """Returns a request to `linear` whose input is in a region."""
    place = {"shared_memory_region": name, "shared_memory_byte_size": size}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": place}
    outputs = [] if output is None else [{"name": "y", "parameters": output}]
    return json.dumps({"inputs": [tensor], "outputs": outputs}).encode()


async def vanishing(target: Target, random: Random) -> None:
    """Truncates, removes or exchanges an object while requests read and write it."""
    name = uuid.uuid4().hex
    with an_object(4096) as file:
        await register(target, name, f"/{file.name}", 0, 4096)
        output = {"shared_memory_region": name, "shared_memory_byte_size": 16}

        async def ask(offset: int) -> None:
            body = asking(name, 16, {**output, "shared_memory_offset": offset})
            status, said = await target.post("/v2/models/linear/infer", body)
            if status == "200" and b'"shared_memory_region"' not in said:
                target.wrong(f"an output in a region was answered with {said[:200]!r}")
            body = asking(name, 16)
            status, said = await target.post("/v2/models/linear/infer", body)
            if status == "200":
                found = json.loads(said)["outputs"][0]["data"]
                # A write between a truncation and a read leaves zeros before it.
                if not all(one in (0.0, right) for one, right in zip(found, RIGHT, strict=True)):
                    target.wrong(f"2 * x of {RIGHT} was {found}")

        async def change() -> None:
            await asyncio.sleep(0)
            act = random.choice(("shrink", "remove", "exchange", "grow"))
            if act == "shrink":
                os.truncate(file, random.choice((0, 8)))
            elif act == "grow":
                os.truncate(file, 64 * MIB)
            else:
                file.unlink()
                if act == "exchange":
                    file.write_bytes(bytes(4096))

        asks = (ask(64 * (number + 1)) for number in range(CALLERS))
        await asyncio.gather(*asks, change())
        if file.exists() and 4096 < (size := file.stat().st_size) != 64 * MIB:
            target.wrong(f"an object has grown to {size} bytes")
        await target.post(f"{ROOT}/{name}/unregister", b"")


async def streamed(target: Target, random: Random) -> None:
    """Changes an object while requests of a stream read and write it."""
    from protos import open_inference_pb2 as pb

    name = uuid.uuid4().hex
    with an_object(4096) as file:
        await register(target, name, f"/{file.name}", 0, 4096)
        asked = pb.ModelInferRequest(model_name="linear")
        given = asked.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        for one, offset in ((given, 0), (asked.outputs.add(name="y"), 1024)):
            one.parameters["shared_memory_region"].string_param = name
            one.parameters["shared_memory_offset"].int64_param = offset
            one.parameters["shared_memory_byte_size"].int64_param = 16
        content = message(asked.SerializeToString())
        heard = Heard()
        async with target.connection(target.grpc_port) as peer:
            listening = asyncio.create_task(heard.listen(peer, 1))
            await peer.send(WIDE_OPEN, begun(1))
            for _ in range(CALLERS):
                await peer.send(frame(DATA, 0, 1, content * 16))
                if file.exists():
                    os.truncate(file, random.choice((0, 8, 1030, 4096, 64 * MIB)))
                if random.random() < 0.1:
                    file.unlink(missing_ok=True)
            await peer.send(frame(DATA, END_STREAM, 1))
            async with asyncio.timeout(30):
                await listening
        target.count(heard.statuses.get(1, "none"))
        if heard.statuses.get(1) != "OK":
            target.wrong(f"a stream with errors in band ended with {heard.statuses.get(1)}")
        answers = heard.messages.get(1, b"").count(b"triton_final_response")
        if answers != 16 * CALLERS:
            target.wrong(f"{answers} of {16 * CALLERS} answers")
        await target.post(f"{ROOT}/{name}/unregister", b"")


async def storm(target: Target, random: Random) -> None:
    """Registers and unregisters regions of any name, key and range, many at once."""
    with an_object(4096) as file:

        async def one() -> None:
            name = random.choice(("a", "b", uuid.uuid4().hex, "%00", "x" * 200, "..%2f"))
            key = random.choice((file.name, f"/{file.name}", "/../etc/passwd", "/", "x" * 5000))
            offset, size = random.choice(((0, 16), (0, 2**62), (2**62, 1), (-1, 1), (4096, 0)))
            status = await register(target, name, key, offset, size)
            if status == "200" and (offset, size) != (0, 16):
                target.wrong(f"{size} bytes from {offset} of 4096 were registered")
            if random.random() < 0.7:
                await target.post(f"{ROOT}/{name}/unregister", b"")

        await asyncio.gather(*(one() for _ in range(CALLERS)))
    await target.post("/v2/systemsharedmemory/unregister", b"")


async def large(target: Target, random: Random) -> None:
    """Has small requests read very large regions: one text of them, or many inputs of one."""
    size = random.choice((MIB, 48 * MIB))
    name = uuid.uuid4().hex
    with an_object(size) as file:
        with file.open("r+b") as opened:
            opened.write(struct.pack("<I", size - 4))  # one text
        await register(target, name, file.name, 0, size)
        place = {"shared_memory_region": name, "shared_memory_byte_size": size}
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "parameters": place}
        count = random.choice((1, 1, 500))
        body = json.dumps({"inputs": [tensor] * count}).encode()

        async def ask() -> None:
            status, said = await target.post("/v2/models/texts/infer", body)
            if status == "200" and json.loads(said)["outputs"][0]["data"][:1] != [1.0]:
                target.wrong(f"one text was answered with {said[:200]!r}")

        await asyncio.gather(*(ask() for _ in range(CALLERS)))
        await target.post(f"{ROOT}/{name}/unregister", b"")


ATTACKS = [
    Attack("regions: truncated, removed and exchanged while requests use them", vanishing),
    Attack("regions: changed while a stream uses them", streamed),
    Attack("regions: registered and unregistered in a storm", storm),
    Attack("regions: small requests that read very large ones", large),
]
