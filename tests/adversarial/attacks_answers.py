"""Responses that are much larger than their requests: read, left unread, or aborted.

The model `typed` returns its inputs: 60 MiB sent as 60 KiB of gzip, over REST as JSON of 300 MB or
as binary data, over gRPC raw or as typed contents. The model `verbose` makes texts of any length.
"""

import asyncio
import gzip
import json
import struct
from contextlib import AsyncExitStack
from functools import cache
from random import Random

from tests.adversarial.attack import Attack, Peer, Target
from tests.adversarial.http2_bytes import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GRPC_INFER,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    data_frames,
    frame,
    message,
)
from tests.adversarial.victim import TYPED

MIB = 2**20
LARGE_BYTES = 60 * MIB
CALLERS = 8
READ_BYTES = 2**20
INT8, FP64 = "INT8", "FP64"


@cache
def _tensors(large: str) -> tuple[tuple[str, list[int], bytes], ...]:
    """Returns datatype, shape and raw data of each input: one is large, the others one element."""
    found = []
    for datatype in TYPED:
        size = 8 if datatype == FP64 else int("".join(filter(str.isdigit, datatype))) // 8
        count = LARGE_BYTES // size if datatype == large else 1
        found.append((datatype, [1, count], b"\x80" * (count * size)))
    return tuple(found)


@cache
def _rest_request(binary: bool, zipped: bool) -> bytes:
    inputs, data = [], b""
    for datatype, shape, raw in _tensors(INT8):
        sized = {"binary_data_size": len(raw)}
        inputs.append(
            {"name": f"in_{datatype}", "datatype": datatype, "shape": shape, "parameters": sized}
        )
        data += raw
    wanted = {"name": "out_INT8", "parameters": {"binary_data": binary}}
    text = json.dumps({"inputs": inputs, "outputs": [wanted]}).encode()
    body = gzip.compress(text + data)
    lines = [
        "POST /v2/models/typed/infer HTTP/1.1", "host: x", "content-encoding: gzip",
        f"inference-header-content-length: {len(text)}", f"content-length: {len(body)}",
        *(["accept-encoding: gzip"] if zipped else []), "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + body


@cache
def grpc_message(typed: bool) -> bytes:
    """Returns the DATA of a compressed request with one large tensor: FP64 if `typed`, or INT8."""
    from protos import open_inference_pb2 as pb

    large = FP64 if typed else INT8
    asked = pb.ModelInferRequest(model_name="typed")
    asked.outputs.add(name=f"out_{large}")
    for datatype, shape, raw in _tensors(large):
        tensor = asked.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=shape)
        if not typed:
            asked.raw_input_contents.append(raw)
        elif datatype == FP64:
            tensor.contents.fp64_contents.extend([0.0] * shape[1])
        else:
            kind = "uint" if datatype.startswith("U") else "int"
            width = "64" if datatype.endswith("64") else ""
            getattr(tensor.contents, f"{kind}{width}_contents").append(1)
    return message(gzip.compress(asked.SerializeToString()), 1)


async def _take(target: Target, peer: Peer, is_read: bool) -> None:
    """Reads the response for a while, or leaves it unread; then resets the connection."""
    try:
        if is_read:
            async with asyncio.timeout(4):
                while await peer.reader.read(READ_BYTES):
                    pass
        else:
            await asyncio.sleep(2)
    except TimeoutError:
        target.count("given up")
    peer.writer.transport.abort()


async def over_rest(target: Target, random: Random) -> None:
    """Requests large responses over HTTP/1."""
    request = _rest_request(random.choice((True, False)), random.choice((True, False)))
    is_read = random.choice((True, False))
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(target.http_port))
            for _ in range(random.choice((1, CALLERS)))
        ]
        await asyncio.gather(*(peer.send(request) for peer in peers))
        await asyncio.gather(*(_take(target, peer, is_read) for peer in peers))


async def over_grpc(target: Target, random: Random) -> None:
    """Requests large responses over gRPC, with windows of any size."""
    asked = grpc_message(random.choice((True, False)))
    window = random.choice((0, 65_535, 2**30))
    first = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window))
    first += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))
    first += frame(HEADERS, END_HEADERS, 1, block(GRPC_INFER, ("grpc-encoding", "gzip")))
    first += data_frames(1, asked) + frame(DATA, END_STREAM, 1)
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(target.grpc_port))
            for _ in range(random.choice((1, CALLERS)))
        ]
        await asyncio.gather(*(peer.send(first) for peer in peers))
        await asyncio.gather(*(_take(target, peer, window > 0) for peer in peers))


LENGTHS = (0, 2**16, 2**20, 2**22, 2**24, 2**40, -1)
"""Bytes that a Python model is asked for: also more than a response, or a process, holds."""


async def of_python(target: Target, random: Random) -> None:
    """Asks a Python model for texts of megabytes: read, left unread, or more than it can make."""
    rows = random.choice((1, 1, 8))
    counts = [random.choice(LENGTHS) for _ in range(rows)]
    asked = {
        "inputs": [{"name": "count", "datatype": "INT64", "shape": [rows, 1], "data": counts}],
        "outputs": [{"name": "text", "parameters": {"binary_data": random.choice((True, False))}}],
    }
    body = json.dumps(asked).encode()
    head = f"POST /v2/models/verbose/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
    async with target.connection(target.http_port) as peer:
        await peer.send(f"{head}\r\n\r\n".encode() + body)
        if random.random() < 0.3:
            await _take(target, peer, is_read=False)
            return
        status, answer = await peer.answer()
        target.count(status)
        if status == "200" and len(answer) < sum(max(count, 0) for count in counts):
            target.wrong(f"texts of {counts} bytes came back in {len(answer)} bytes")
        if status == "no answer":
            target.wrong(f"texts of {counts} bytes were never answered")


ATTACKS = (
    Attack("answers: larger than the questions, over REST", over_rest),
    Attack("answers: larger than the questions, over gRPC", over_grpc),
    Attack("answers: texts of a Python model", of_python),
)
