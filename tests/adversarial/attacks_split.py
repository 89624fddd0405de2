"""Attacks through Redis: very many texts, large responses, jobs and their results.

The gateway encodes requests for the queue and decodes responses, the worker the other way round;
the memory of each of the two is measured.
"""

import asyncio
import contextlib
import gzip
import json
import time
from functools import cache
from random import Random

from tests.adversarial import attacks_answers
from tests.adversarial.attack import Attack, Target
from tests.adversarial.http2_bytes import GRPC_INFER, call_all
from tests.adversarial.text_model import SLOW_S, SLOW_TEXTS
from tests.adversarial.victim import TYPED

MIB = 2**20
TEXTS = 2**20
"""Largest number of texts in a request."""
CALLERS = 4
JOBS = 12
JOB_BYTES = 60 * MIB
JOB_TIMEOUT_S = 20
LONGEST_S = 8.0
"""Seconds of a round at most."""
SLOW_CALLERS, SLOW_TEXT_BYTES = 5, 80_000
MEDIUM_BYTES = 300_000
GET_JOB = "/flambeau.v1.JobService/GetJob"


@cache
def _texts(count: int, size: int) -> tuple[bytes, int]:
    """Returns a request of binary texts over REST, as gzip; and the length of its JSON."""
    raw = (size.to_bytes(4, "little") + b"t" * size) * count
    head = {
        "name": "text", "datatype": "BYTES", "shape": [1, count],
        "parameters": {"binary_data_size": len(raw)},
    }  # fmt: skip
    text = json.dumps({"inputs": [head]}).encode()
    return gzip.compress(text + raw), len(text)


async def _ask_texts(target: Target, count: int, size: int) -> None:
    body, length = _texts(count, size)
    fields = f"inference-header-content-length: {length}", "content-encoding: gzip"
    status, said = await target.post("/v2/models/texts/infer", body, *fields)
    if status == "200":
        found = json.loads(said)["outputs"][0]["data"][:2]
        if found != [count, count * size]:
            target.wrong(f"{count} texts of {size} bytes were {found}")


async def texts_over_rest(target: Target, random: Random) -> None:
    """Sends valid texts, at the maximum count or the maximum size."""
    count, size = random.choice(((TEXTS, 2), (TEXTS // 8, 400), (60, MIB)))
    callers = random.choice((1, CALLERS))
    await asyncio.gather(*(_ask_texts(target, count, size) for _ in range(callers)))


async def texts_over_grpc(target: Target, random: Random) -> None:
    """Sends the same over gRPC."""
    from protos import open_inference_pb2 as pb

    count, size = random.choice(((TEXTS, 2), (TEXTS // 8, 400), (60, MIB)))
    asked = pb.ModelInferRequest(model_name="texts")
    asked.inputs.add(name="text", datatype="BYTES", shape=[1, count])
    asked.raw_input_contents.append((size.to_bytes(4, "little") + b"t" * size) * count)
    packed = [gzip.compress(asked.SerializeToString())] * random.choice((1, CALLERS))
    await call_all(target, GRPC_INFER, packed, ("grpc-encoding", "gzip"), flag=1)


async def slow_model(target: Target, random: Random) -> None:
    """Sends large requests to a slow model, beside a large one to another model."""
    _texts(SLOW_TEXTS, SLOW_TEXT_BYTES)  # compressing it later would delay the measured call
    body, length = _typed(MEDIUM_BYTES, 0)
    slow = [_ask_texts(target, SLOW_TEXTS, SLOW_TEXT_BYTES) for _ in range(SLOW_CALLERS)]
    waiting = asyncio.gather(*slow, return_exceptions=True)
    fields = f"inference-header-content-length: {length}", "content-encoding: gzip"
    ends_at = max(time.monotonic() + 2 * SLOW_S, target.ends_at)
    while not waiting.done() and time.monotonic() < ends_at:
        began = time.monotonic()
        status, _ = await target.post("/v2/models/typed/infer", body, *fields)
        waited_s = time.monotonic() - began
        if status == "200" and waited_s > 0.8 * SLOW_S:
            target.wrong(f"{MEDIUM_BYTES} bytes of another model waited for {waited_s:.1f} s")
        await asyncio.wait([waiting], timeout=0.1)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


@cache
def _typed(large_bytes: int, timeout_s: int) -> tuple[bytes, int]:
    """Returns a request whose response has its own size, as gzip; and the length of its JSON."""
    inputs, data = [], b""
    for datatype in TYPED:
        size = 8 if datatype == "FP64" else int("".join(filter(str.isdigit, datatype))) // 8
        count = large_bytes if datatype == "INT8" else 1
        sized = {"binary_data_size": count * size}
        inputs.append(
            {"name": f"in_{datatype}", "datatype": datatype, "shape": [1, count],
             "parameters": sized}
        )  # fmt: skip
        data += b"\x80" * (count * size)
    text = json.dumps({"inputs": inputs, "parameters": {"timeout": timeout_s * 1_000_000}})
    return gzip.compress(text.encode() + data), len(text)


async def _submit(target: Target) -> str:
    """Submits a job; returns its id, or nothing if it was refused."""
    body, length = _typed(JOB_BYTES, JOB_TIMEOUT_S)
    status, said = await target.post(
        "/v2/models/typed/jobs", body,
        f"inference-header-content-length: {length}", "content-encoding: gzip",
    )  # fmt: skip
    found: str = json.loads(said)["id"] if status in ("200", "202") else ""
    return found


async def _get(target: Target, path: str, *fields: str) -> None:
    async with target.connection(target.http_port) as peer:
        await peer.send("\r\n".join([f"GET {path} HTTP/1.1", "host: x", *fields, "", ""]).encode())
        target.count((await peer.answer())[0])


async def jobs(target: Target, random: Random) -> None:
    """Submits many large jobs; cancels some, and fetches results in every form."""
    _typed(JOB_BYTES, JOB_TIMEOUT_S)  # its compression is no part of the round's time
    seeds = [Random(random.random()) for _ in range(random.choice((2, JOBS)))]

    async def one(seed: Random) -> None:
        job = await _submit(target)
        if job:
            await _finish(target, seed, job)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(LONGEST_S, target.ends_at - time.monotonic())):
            await asyncio.gather(*(one(seed) for seed in seeds))


async def _finish(target: Target, random: Random, job: str) -> None:
    """Cancels a job, or waits for it and fetches its result from several clients at once."""
    from protos.flambeau.v1 import jobs_pb2

    if random.random() < 0.5:
        async with target.connection(target.http_port) as peer:
            await peer.send(f"DELETE /v2/jobs/{job} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            target.count((await peer.answer())[0])
        return
    asked = jobs_pb2.GetJobRequest(id=job)
    asked.wait.seconds = 10
    await asyncio.gather(
        _get(target, f"/v2/jobs/{job}?wait=10s"),
        _get(target, f"/v2/jobs/{job}/result"),
        _get(target, f"/v2/jobs/{job}/result", "accept: application/octet-stream"),
        call_all(target, GET_JOB, [asked.SerializeToString()] * 2),
    )


ATTACKS = (
    Attack("split: texts without number, over REST", texts_over_rest, "split"),
    Attack("split: texts without number, over gRPC", texts_over_grpc, "split"),
    Attack("split: large answers over REST", attacks_answers.over_rest, "split"),
    Attack("split: large answers over gRPC", attacks_answers.over_grpc, "split"),
    Attack("split: large jobs", jobs, "split"),
    Attack("split: a slow model", slow_model, "split"),
)
