"""Attacks on the registry: declarations, chunks, names, races, and downloads that nobody reads."""

import asyncio
import contextlib
import functools
import hashlib
import json
import shutil
from random import Random
from typing import Any
from urllib.parse import quote

from model_store.store import ModelStore
from tests.adversarial.attack import Attack, Target
from tests.fixtures import onnx_models

CHUNK_BYTES = 8 * 2**20
AT_ONCE = 8
HELD_S = 0.5
STORM = 50
"""Requests of one connection, sent without waiting for answers."""
POSITIONS = (
    "0", "-1", "1" * 4000, "9" * 19, "1e9", "0x10", "NaN", "\0", "\r\nx: y", "\u0661", " 1", "1 ",
    "../events", "0" * 2000 + "1", "18446744073709551616", "1-2", "1,2", "\U0001f600",
)  # fmt: skip
NAMES = (
    "../../evil", "..", ".", "/etc/passwd", "a/b", "\0", "evil\n", "é", "x" * 4000, "claim.json",
    "%2e%2e%2fevil", ".uploads", "manifest.json/..",
)  # fmt: skip
REFUSED = ("400", "404", "405", "409", "413", "431", "503", "closed")
PATHS = (
    "models/{}", "models/{}/versions/1", "models/linear/versions/{}", "models/{}/history",
    "models/linear/versions/1/files/{}", "uploads/{}", "models?after={}", "models?limit={}",
    "models/{}/rollout", "models/linear/rollout/{}", "models/{}/shadow", "models/{}/split",
    "events?after={}",
)  # fmt: skip


async def call_registry(
    target: Target, method: str, path: str, body: bytes = b"", *fields: str
) -> tuple[str, bytes]:
    """Sends one request on a new connection; counts and returns its status."""
    lines = [f"{method} /v1/registry/{path} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    answer = "closed", b""
    async with target.connection(target.http_port) as peer:
        peer.writer.writelines(["\r\n".join([*lines, *fields, "", ""]).encode(), body])
        with contextlib.suppress(ConnectionError):
            await peer.writer.drain()
        answer = await peer.answer()
        target.count(answer[0])
    if answer[0] == "500":
        target.wrong(f"{method} {path[:80]}: {answer[1][:200]!r}")
    return answer


async def _begin(target: Target, document: bytes) -> tuple[str, bytes]:
    return await call_registry(
        target, "POST", "uploads", document, "content-type: application/json"
    )


def _declared(*files: dict[str, Any], **changes: Any) -> bytes:
    manifest = {"file": "manifest.json", "size_bytes": 2, "sha256": "0" * 64}
    found = {"model": "evil", "version": 1, "files": [manifest, *files], **changes}
    return json.dumps(found).encode()


def _file(name: str, size_bytes: int = 2**20) -> dict[str, Any]:
    return {"file": name, "size_bytes": size_bytes, "sha256": "1" * 64}


@functools.cache
def _documents() -> tuple[bytes, ...]:
    """Returns declarations that break rules, and those that cost most to refuse."""
    many = [_file(f"f{n}") for n in range(100_000)]
    return (
        b"[" * 2**20, b'{"a":' * 10_000, b'"' + b"x" * (CHUNK_BYTES - 2) + b'"',
        b"[" + b"0," * 2**21 + b"0]", b"1" * CHUNK_BYTES, b"\xff" * 1000, b"", b"null", b"[]",
        _declared(*many), _declared(*many[:5000]), _declared(_file("a"), _file("a")),
        *(_declared(_file(name)) for name in NAMES),
        *(_declared(model=name) for name in NAMES if name != "claim.json"),
        *(_declared(_file("a", size)) for size in (-1, 2**63, 10**400, 2**40)),
        *(_declared(version=version) for version in (0, -1, 10**30, "x", None, 1.5)),
    )  # fmt: skip


async def declarations(target: Target, random: Random) -> None:
    """Begins uploads that must be refused, several at once."""
    chosen = random.choices(_documents(), k=AT_ONCE)
    for status, said in await asyncio.gather(*(_begin(target, one) for one in chosen)):
        if status not in REFUSED:
            target.wrong(f"a declaration: {status} {said[:200]!r}")


async def many_uploads(target: Target, random: Random) -> None:
    """Begins more uploads than may be open at once, and abandons them."""

    async def begin() -> str:
        sha256 = hashlib.sha256(random.randbytes(8)).hexdigest()
        manifest = {"file": "manifest.json", "size_bytes": 2, "sha256": sha256}
        status, said = await _begin(target, _declared(files=[manifest]))
        return str(json.loads(said)["id"]) if status == "200" else ""

    begun = await asyncio.gather(*(begin() for _ in range(3 * AT_ONCE)))
    for upload in filter(None, begun):  # what stays open keeps later attacks from beginning any
        await call_registry(target, "DELETE", f"uploads/{upload}")


async def reservations(target: Target, random: Random) -> None:
    """Declares more bytes than the disk has, in several uploads at once, and abandons them."""

    async def reserve() -> None:
        manifest = {
            "file": "manifest.json",
            "size_bytes": 2,
            "sha256": f"{random.getrandbits(256):064x}",
        }
        sizes = [_file(f"f{n}", 2 ** random.randrange(20, 38)) for n in range(4)]
        status, said = await _begin(target, _declared(files=[manifest, *sizes]))
        if status == "200":
            await call_registry(target, "DELETE", f"uploads/{json.loads(said)['id']}")
        elif status not in ("503", "507", "closed"):
            target.wrong(f"a reservation: {status} {said[:200]!r}")

    await asyncio.gather(*(reserve() for _ in range(2 * AT_ONCE)))


async def chunks(target: Target, random: Random) -> None:
    """Appends to one upload from several connections: wrong places, sizes and names."""
    status, said = await _begin(target, _declared(_file("weights", 2**24)))
    if status != "200":
        return
    path = f"uploads/{json.loads(said)['id']}"

    async def append() -> None:
        size = random.choice((0, 1, 1000, 2**20, CHUNK_BYTES, CHUNK_BYTES + 1))
        offset = random.choice(("0", "-1", "1e3", "", "9" * 40, str(2**62), str(size)))
        name = random.choice(("weights", "manifest.json", quote(random.choice(NAMES), safe="")))
        query = f"?offset={offset}"
        await call_registry(target, "PUT", f"{path}/files/{name[:4000]}{query}", bytes(size))

    async def end() -> None:
        kind = "content-type: application/json"
        status, said = await call_registry(target, "POST", f"{path}/finish", b"{}", kind)
        if status == "200":
            target.wrong(f"an upload without its bytes was published: {said[:200]!r}")

    await asyncio.gather(*(append() for _ in range(AT_ONCE)), end())
    if random.random() < 0.5:
        await call_registry(target, "DELETE", path)


async def half_chunks(target: Target, random: Random) -> None:
    """Announces chunks, sends a part of each, and leaves."""
    for _ in range(AT_ONCE):
        size = random.choice((10, CHUNK_BYTES, CHUNK_BYTES + 1, 10**12))
        head = f"PUT /v1/registry/uploads/{'0' * 32}/files/a?offset=0 HTTP/1.1\r\nhost: x\r\n"
        async with target.connection(target.http_port) as peer:
            await peer.send(f"{head}content-length: {size}\r\n\r\n".encode(), b"x" * 5)
            target.count("left")
    await call_registry(target, "GET", "models")


async def names(target: Target, random: Random) -> None:
    """Asks for names that climb out of their folder, or are none."""
    for _ in range(AT_ONCE):
        path = random.choice(PATHS).format(quote(random.choice(NAMES), safe=""))
        method = random.choice(("GET", "DELETE", "PATCH", "POST", "PUT"))
        status, said = await call_registry(
            target, method, path, b"{}", "content-type: application/json"
        )
        if status == "200" and b"root:" in said:
            target.wrong(f"{path[:80]} gave a file of the system")


async def moves(target: Target, random: Random) -> None:
    """Moves aliases from several connections, to versions that are there and are not."""

    async def move() -> None:
        body = json.dumps({"version": random.choice((1, 2, 10**8)), "why": "x" * 400}).encode()
        alias = random.choice(("canary", "a" * 129, "7", quote("../x", safe="")))
        kind = "content-type: application/json"
        await call_registry(target, "POST", f"models/linear/aliases/{alias}", body, kind)

    await asyncio.gather(*(move() for _ in range(AT_ONCE)))


SHARES: tuple[Any, ...] = (
    0, -1, 1.0000001, 1e308, 1e-320, float("nan"), float("inf"), 10**400, "10%", True, None, [0.1],
)  # fmt: skip
STICKIES: tuple[Any, ...] = (
    "header:", "header:\r\nx", "header:a\0b", "parameter:\x1b[2J", "cookie:a", "header:\ud800",
    "parameter:" + "x" * 65, "header:\u202ea", ["header:a"], 1,
)  # fmt: skip

WRONG: tuple[Any, ...] = (None, True, {}, [[]], "\0" * 1000, -1e308)


@functools.cache
def _rollouts() -> tuple[bytes, ...]:
    """Returns rollouts, shadows and splits that break rules, or name no version that is there."""
    nowhere = {"version": 10**8}
    half = {"version": 10**8, "share": 0.5}
    documents: tuple[dict[str, Any], ...] = (
        nowhere, {"version": 0}, {"version": 10**400}, {**nowhere, "steps": [0.1] * 10_000},
        {**nowhere, "steps": [float("nan")]}, {**nowhere, "steps": [0.5, 0.1]},
        {**nowhere, "sticky": "header:" + "x" * 60_000}, {**nowhere, "every_s": 1e308},
        {**nowhere, "guards": {f"g{n}": {"a": [[[n]]]} for n in range(1000)}},
        {**nowhere, "sample": -1}, {**nowhere, "why": "x" * 60_000},
        *({**nowhere, "steps": [share]} for share in SHARES),
        *({**nowhere, "sample": share} for share in SHARES),
        *({**nowhere, "mirrored": share} for share in SHARES),
        *({**nowhere, "sticky": sticky} for sticky in STICKIES),
        *({"name": "ab", "sticky": sticky, "arms": [half, half]} for sticky in STICKIES),
        *({"name": "ab", "arms": [half, {**half, "share": share}]} for share in SHARES),
        *({field: value} for field in ("why", "version", "steps", "arms", "guards")
          for value in WRONG),
        {**nowhere, "guards": {"latency": {"ratio": 10**400}}},
        {"name": "../x", "arms": [half, half]}, {"name": "ab", "arms": [half] * 1000},
        {"name": "ab", "arms": [{**half, "share": float("inf")}] * 2},
    )  # fmt: skip
    long = (json.dumps({**nowhere, "why": letter * 2**20}).encode() for letter in "x\0\u20ac")
    hostile = (*long, b"[" * 60_000, b'{"steps":' * 10_000, b"1" * 60_000, b"\xff", b"", b"null")
    return (*(json.dumps(one).encode() for one in documents), *hostile)


async def rollouts(target: Target, random: Random) -> None:
    """Starts rollouts, shadows and splits that must be refused, several at once."""

    async def start() -> None:
        kind = random.choice(("rollout", "shadow", "split", "rollout/pause", "split/end"))
        body, fields = random.choice(_rollouts()), "content-type: application/json"
        status, said = await call_registry(target, "POST", f"models/linear/{kind}", body, fields)
        if status not in (*REFUSED, "403"):
            target.wrong(f"{kind}: {status} {said[:200]!r}")

    await asyncio.gather(*(start() for _ in range(AT_ONCE)))


async def rollout_storms(target: Target, random: Random) -> None:
    """Starts, pauses and aborts real rollouts, hundreds at once over a few connections."""
    name = f"rolled-{random.getrandbits(32):08x}"
    store = ModelStore(str(target.store))
    try:
        for scale in (1.0, 2.0):
            await asyncio.to_thread(onnx_models.publish, store.url, name, onnx_models.linear(scale))
        await asyncio.to_thread(store.promote, name, 1)
        await asyncio.gather(*(_storm(target, random, name) for _ in range(AT_ONCE)))
        status, said = await call_registry(target, "GET", f"models/{name}/rollout")
        if status not in ("200", "503", "closed"):
            target.wrong(f"the rollout after a storm: {status} {said[:200]!r}")
        found = await asyncio.to_thread(store.pointers, name)
        if found is None or found.aliases.get("production") not in (1, 2):
            target.wrong(f"pointers after a storm: {found}")
    finally:
        await asyncio.to_thread(shutil.rmtree, target.store / name, ignore_errors=True)


async def _storm(target: Target, random: Random, name: str) -> None:
    starts = [json.dumps({"version": version, "why": "a storm"}).encode() for version in (1, 2)]
    requests = []
    for _ in range(STORM):
        act = random.choice(("", "", "/pause", "/resume", "/abort", "/promote"))
        sent = b'{"why": "a storm"}' if act else random.choice(starts)
        path = f"/v1/registry/models/{name}/rollout{act}"
        kind = "content-type: application/json"
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{kind}\r\ncontent-length: {len(sent)}\r\n\r\n"
        requests.append(head.encode() + sent)
    async with target.connection(target.http_port) as peer:
        peer.writer.writelines(requests)
        with contextlib.suppress(ConnectionError):
            await peer.writer.drain()
        for _ in requests:
            status, said = await peer.answer()
            target.count(status)
            if status not in ("200", *REFUSED):
                target.wrong(f"a storm of rollouts: {status} {said[:200]!r}")
            if status in ("closed", "no answer"):
                return


async def event_positions(target: Target, random: Random) -> None:
    """Asks for events after ids that are none, or far away, and reads a little of what comes."""

    async def follow() -> None:
        after = quote(random.choice(POSITIONS), safe="")
        in_header = random.random() < 0.5
        lines = [f"GET /v1/registry/events{'' if in_header else f'?after={after}'} HTTP/1.1"]
        lines += ["host: x", *([f"last-event-id: {after}"] if in_header else [])]
        async with target.connection(target.http_port) as peer:
            await peer.send("\r\n".join([*lines, "", ""]).encode())
            status, said = await peer.answer()
            target.count(status)
            if status not in ("200", *REFUSED):
                target.wrong(f"events after {after[:80]}: {status} {said[:200]!r}")

    await asyncio.gather(*(follow() for _ in range(AT_ONCE)))


async def event_readers(target: Target, random: Random) -> None:
    """Follows events on more connections than may, reads none of them, and leaves."""
    request = b"GET /v1/registry/events?after=0 HTTP/1.1\r\nhost: x\r\n\r\n"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(random.choice((1, 20, 90))):
            opened = target.connection(target.http_port, receive_bytes=1024)
            peer = await stack.enter_async_context(opened)
            with contextlib.suppress(ConnectionError):
                await peer.send(request * random.choice((1, 16)))
        await asyncio.sleep(HELD_S)
        target.count("held")


async def unread_downloads(target: Target, random: Random) -> None:
    """Asks for files, many times in one connection, and reads nothing."""
    path = "/v1/registry/models/linear/versions/1/files/manifest.json"
    request = f"GET {path} HTTP/1.1\r\nhost: x\r\nrange: bytes={random.randrange(9)}-\r\n\r\n"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(AT_ONCE):
            opened = target.connection(target.http_port, receive_bytes=1024)
            peer = await stack.enter_async_context(opened)
            await peer.send(request.encode() * random.choice((1, 16)))
        await asyncio.sleep(HELD_S)
        target.count("held")


ATTACKS = [
    Attack(f"registry: {run.__name__.replace('_', ' ')}", run, "registry")
    for run in (
        declarations,
        many_uploads,
        reservations,
        chunks,
        half_chunks,
        names,
        moves,
        rollouts,
        rollout_storms,
        event_positions,
        event_readers,
        unread_downloads,
    )
]
