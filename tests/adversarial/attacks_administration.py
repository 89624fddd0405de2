"""Attacks on the calls beside inference: hostile bodies, and storms of calls that cost the most.

A body is refused, or the call answered; an error of the server is reported as wrong.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_grpc import REFUSALS, field
from tests.adversarial.http2_bytes import call_all

SETTERS = (
    "/v2/repository/index", "/v2/repository/models/linear/load",
    "/v2/repository/models/linear/unload", "/v2/logging", "/v2/trace/setting",
    "/v2/models/linear/trace/setting", "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/register", "/v2/systemsharedmemory/unregister",
)  # fmt: skip
PREDICTS = (
    "/v1/models/linear:predict", "/v1/models/linear/versions/1:predict",
    "/v1/models/texts:predict", "/v1/models/typed:predict", "/v1/models/linear/labels/x:predict",
    "/v1/models/linear:classify",
)  # fmt: skip
NAMES = (
    "ready", "parameters", "config", "unload_dependents", "log_info", "log_verbose_level",
    "log_file", "trace_rate", "trace_level", "key", "byte_size", "raw_handle",
)  # fmt: skip
CALLS = (
    "ModelConfig", "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad",
    "RepositoryModelUnload", "SystemSharedMemoryStatus", "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus", "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister", "TraceSetting", "LogSettings",
)  # fmt: skip
HEAVY = ("/v2/models/stats", "/v2/models/linear/stats", "/v2/models/linear/config", "/v1/models")
"""Calls that read all that there is; each is answered with 200."""
REFUSED = frozenset(("400", "404", "405", "408", "413", "429", "501", "503", "closed"))
WIDE = 24
MIB = 2**20


def value(random: Random, depth: int = 0) -> Any:
    """Returns a value of JSON, seldom a right one."""
    kinds: Sequence[Callable[[], Any]] = (
        lambda: random.choice((None, True, False, "", "x", "TIMESTAMPS", "1000", {"b64": "?"})),
        lambda: random.choice((0, -1, 1, 2**31, 2**63, -(2**63), 2**64 - 1, 1.5, 1e308)),
        lambda: "x" * random.choice((1, 100, 7_000)),
        lambda: [value(random, depth + 1) for _ in range(random.choice((0, 1, 8)))],
        lambda: {name: value(random, depth + 1) for name in random.sample(NAMES, 3)},
    )
    return random.choice(kinds[:3] if depth > 2 else kinds)()


def settings_body(random: Random) -> bytes:
    """Returns a body for a call with few members."""
    return random.choice((
        lambda: json.dumps(value(random)).encode(),
        lambda: json.dumps({name: value(random) for name in random.sample(NAMES, 4)}).encode(),
        lambda: b"[" * random.choice((10, 8_000, 200_000)),
        lambda: b'{"a":' * random.choice((10, 1_500, 40_000)),
        lambda: b"{%b}" % b",".join(b'"%d":1' % n for n in range(random.choice((70, 900, 9_000)))),
        lambda: b'{"trace_rate":"%b"}' % (b"9" * random.choice((11, 7_000))),
        lambda: b'{"log_verbose_level":%b}' % (b"9" * random.choice((30, 7_000))),
        lambda: random.randbytes(random.choice((1, 100, 8_000))),
        lambda: b" " * random.choice((1, 8_192, MIB)),
    ))()  # fmt: skip


def predict_body(random: Random) -> bytes:
    """Returns a body of `:predict`, of up to 9 MiB, over its limit."""
    key = random.choice((b"instances", b"inputs"))
    rows = random.choice((1, 100, 3_000, 100_000))
    return random.choice((
        lambda: b'{"%b":%b}' % (key, json.dumps(value(random)).encode()),
        lambda: b'{"%b":[%b]}' % (key, b",".join([b"[]"] * rows)),
        lambda: b'{"%b":[%b]}' % (key, b",".join([b"[1,2,3,4]"] * rows)),
        lambda: b'{"%b":[%b]}' % (key, b",".join([b'{"b64":"AA=="}'] * rows)),
        lambda: b'{"%b":[%b]}' % (key, b",".join([b'{"x":[1,2,3,4]}'] * rows)),
        lambda: b'{"%b":%b1%b}' % (key, b"[" * rows, b"]" * rows),
        lambda: b'{"%b":[%b]}' % (key, b",".join([b"1e400", b"-0", b"1" * 400] * (rows // 3))),
        lambda: b'{"%b":[{"b64":"%b"}]}' % (key, b"A" * random.choice((4, MIB // 2, 3 * MIB))),
        lambda: b'{"%b":[%b' % (key, b"1," * random.choice((100, MIB, 4 * MIB + MIB // 4))),
        lambda: b'{"%b":[[1,2,3,4]],"%b":1}' % (key, b"k" * random.choice((10, MIB, 9 * MIB))),
        lambda: b'{"signature_name":"%b"}' % (b"s" * random.choice((1, MIB))),
    ))()  # fmt: skip


def posts(paths: Sequence[str], make: Callable[[Random], bytes]) -> Any:
    """Returns an attack that posts bodies to paths."""

    async def run(target: Target, random: Random) -> None:
        bodies = [(random.choice(paths), make(random)) for _ in range(4)]
        answers = await asyncio.gather(*(target.post(path, body) for path, body in bodies))
        for (path, body), (status, said) in zip(bodies, answers, strict=True):
            if status != "200" and status not in REFUSED:
                target.wrong(f"{status} to {path} {body[:100]!r}: {said[:200]!r}")

    return run


async def storm(target: Target, random: Random) -> None:
    """Asks for all that there is, on many connections at once, each some times in a row."""

    async def ask() -> None:
        path = random.choice(HEAVY)
        request = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        async with target.connection(target.http_port) as peer:
            await peer.send(request * 4)
            for _ in range(4):
                status, said = await peer.answer()
                target.count(status)
                if status not in ("200", "429", "503", "closed"):
                    target.wrong(f"{status} to {path}: {said[:200]!r}")

    await asyncio.gather(*(ask() for _ in range(WIDE)))


async def act_storm(target: Target, random: Random) -> None:
    """Loads and unloads models, real and invented, on many connections at once."""
    names = ("linear", "typed", "nowhere", "%2e%2e", "x" * 2_000)
    paths = [
        f"/v2/repository/models/{random.choice(names)}/{random.choice(('load', 'unload'))}"
        for _ in range(WIDE)
    ]
    answers = await asyncio.gather(*(target.post(path, b"") for path in paths))
    for path, (status, said) in zip(paths, answers, strict=True):
        if status not in ("503", "404", "431", "closed"):
            target.wrong(f"{status} to {path[:100]}: {said[:200]!r}")


async def messages(target: Target, random: Random) -> None:
    """Sends messages of the calls over gRPC: right, of other calls, and random bytes."""

    def content() -> bytes:
        entry = field(1, b"n" * random.choice((1, 2_000))) + field(2, random.randbytes(20))
        return random.choice((
            lambda: field(1, b"linear"),
            lambda: field(1, b"\xff" * 100),
            lambda: field(1, b"linear") + field(2, b"9" * random.choice((1, 400, 7_000))),
            lambda: b"".join(field(3, entry) for _ in range(random.choice((1, 300)))),
            lambda: b"".join(field(1, entry) for _ in range(random.choice((1, 300)))),
            lambda: random.randbytes(random.choice((1, 100, 8_000))),
            lambda: b"\x12\x00" * random.choice((1, 4_000, 100_000)),
        ))()  # fmt: skip

    path = f"/inference.GRPCInferenceService/{random.choice(CALLS)}"
    sent = [content() for _ in range(16)]
    for one, (status, _) in zip(sent, await call_all(target, path, sent), strict=True):
        if status not in REFUSALS | {"OK", "none"}:
            target.wrong(f"{status} to {path} {one[:100]!r}")


ATTACKS = (
    Attack("administration: hostile bodies", posts(SETTERS, settings_body)),
    Attack("administration: hostile bodies of predict", posts(PREDICTS, predict_body)),
    Attack("administration: all statistics, many times", storm),
    Attack("administration: loads and unloads", act_storm),
    Attack("administration: messages", messages),
)
