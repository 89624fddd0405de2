"""Attacks on lists of uploads: floods, other callers' uploads, and callers without the grant."""

import asyncio
import contextlib
import json
from random import Random
from typing import Any
from urllib.parse import quote

from protos.flambeau.v1 import registry_pb2 as pb
from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_grpc import deep, field, unknown
from tests.adversarial.attacks_registry import AT_ONCE, NAMES, POSITIONS, REFUSED, call_registry
from tests.adversarial.attacks_registry_aliases import FORBIDDEN_OVER_GRPC
from tests.adversarial.attacks_registry_grpc import REFUSED as REFUSED_OVER_GRPC
from tests.adversarial.attacks_registry_grpc import SERVICE
from tests.adversarial.http2_bytes import call_all

MOST_OF_ONE = 16
"""Uploads of one caller at most."""
LISTS = 100
"""Lists of one connection, asked for without waiting."""
NOBODY = "fl_" + "x" * 40
AS_JSON = "content-type: application/json"


def _declaration(random: Random, model: str = "evil") -> bytes:
    manifest = {
        "file": "manifest.json",
        "size_bytes": 2,
        "sha256": f"{random.getrandbits(256):064x}",
    }
    many = [{"file": f"f{n}", "size_bytes": 1, "sha256": "1" * 64} for n in range(200)]
    return json.dumps({"model": model, "version": 1, "files": [manifest, *many]}).encode()


async def _begun(target: Target, random: Random, *fields: str) -> str:
    """Begins an upload; returns its id, or nothing."""
    status, said = await call_registry(
        target, "POST", "uploads", _declaration(random), AS_JSON, *fields
    )
    return str(json.loads(said)["id"]) if status == "200" else ""


def _check_list(target: Target, said: bytes, foreign: str = "") -> None:
    """Checks a list: it is bounded, and has no upload of another caller."""
    uploads: list[dict[str, Any]] = json.loads(said)["uploads"]
    if len(uploads) > MOST_OF_ONE:
        target.wrong(f"a list of {len(uploads)} uploads")
    if foreign and foreign.encode() in said:
        target.wrong(f"a list has another caller's upload: {said[:200]!r}")


async def upload_lists(target: Target, random: Random) -> None:
    """Floods connections with lists, while uploads begin and end."""

    async def begin_and_end() -> None:
        for _ in range(4):
            if upload := await _begun(target, random):
                await call_registry(target, "DELETE", f"uploads/{upload}")

    async def flood() -> None:
        query = random.choice(("", f"?after={quote(random.choice(POSITIONS), safe='')}"))
        request = f"GET /v1/registry/uploads{query[:4000]} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        async with target.connection(target.http_port) as peer:
            with contextlib.suppress(ConnectionError):
                await peer.send(request * LISTS)
            for _ in range(LISTS):
                status, said = await peer.answer()
                target.count(status)
                if status == "200":
                    _check_list(target, said)
                elif status not in REFUSED:
                    target.wrong(f"a list of uploads: {status} {said[:200]!r}")
                if status in ("closed", "no answer"):
                    return

    await asyncio.gather(*(begin_and_end() for _ in range(4)), *(flood() for _ in range(4)))


async def unread_upload_lists(target: Target, random: Random) -> None:
    """Asks for lists in many connections, reads nothing, and leaves."""
    upload = await _begun(target, random)
    request = b"GET /v1/registry/uploads HTTP/1.1\r\nhost: x\r\n\r\n"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4 * AT_ONCE):
            opened = target.connection(target.http_port, receive_bytes=1024)
            peer = await stack.enter_async_context(opened)
            with contextlib.suppress(ConnectionError):
                await peer.send(request * random.choice((1, LISTS)))
            target.count("left")
    if upload:
        await call_registry(target, "DELETE", f"uploads/{upload}")


async def foreign_uploads(target: Target, random: Random) -> None:
    """Lists, reads, fills, finishes and abandons the upload of another caller."""
    owner, other = (f"x-api-key: {key}" for key in random.sample(target.persons, 2))
    upload = await _begun(target, random, owner)
    if not upload:
        return
    name = quote(random.choice(NAMES), safe="")
    acts = [
        ("GET", f"uploads/{upload}", b""),
        ("DELETE", f"uploads/{upload}", b""),
        ("POST", f"uploads/{upload}/finish", b"{}"),
        ("PUT", f"uploads/{upload}/files/manifest.json?offset=0", b"{}"),
        ("PUT", f"uploads/{upload}/files/{name}?offset=0", b"{}"),
    ]
    callers = (other, f"x-api-key: {target.key}", f"x-api-key: {NOBODY}", "x-other: 1")

    async def act(method: str, path: str, body: bytes) -> None:
        fields = (AS_JSON, random.choice(callers))
        status, said = await call_registry(target, method, path, body, *fields)
        if status not in (*REFUSED, "401", "403"):
            target.wrong(f"{method} of another caller's upload: {status} {said[:200]!r}")

    async def read(caller: str) -> None:
        status, said = await call_registry(target, "GET", "uploads", b"", caller)
        if status == "200":
            _check_list(target, said, upload)
        elif status not in (*REFUSED, "401", "403"):
            target.wrong(f"a list of uploads: {status} {said[:200]!r}")

    await asyncio.gather(*(act(*one) for one in acts), *(read(one) for one in callers))
    status, said = await call_registry(target, "GET", "uploads", b"", owner)
    if status == "200" and upload.encode() not in said:
        target.wrong("another caller has removed an upload")
    await call_registry(target, "DELETE", f"uploads/{upload}", b"", owner)


async def upload_lists_over_grpc(target: Target, random: Random) -> None:
    """Asks for lists with deep, unknown and damaged fields, of the upload of another caller."""
    owner, other = random.sample(target.persons, 2)
    upload = await _begun(target, random, f"x-api-key: {owner}")

    def make() -> bytes:
        size = random.choice((0, 10, 1000, 60_000))
        some = field(random.randrange(1, 4), random.choice((b"", b"\xff", b"linear")))
        kind = random.choice((deep, unknown, None))
        made = kind(random, size) if kind is not None else some * (size // len(some) + 1)
        return made[: random.choice((len(made), random.randrange(len(made) + 1)))]

    async def lists(key: str) -> None:
        asked = [b"", *(make() for _ in range(AT_ONCE))]
        method = SERVICE + "ListUploads"
        for status, said in await call_all(target, method, asked, ("x-api-key", key)):
            if status == "OK":
                found = pb.ListUploadsResponse.FromString(said).uploads
                if len(found) > MOST_OF_ONE or any(one.id == upload for one in found):
                    target.wrong(f"{len(found)} uploads over gRPC, or another caller's")
            elif status not in (*REFUSED_OVER_GRPC, *FORBIDDEN_OVER_GRPC):
                target.wrong(f"ListUploads: {status} {said[:200]!r}")

    await asyncio.gather(*(lists(key) for key in (other, target.key, NOBODY)))
    if upload:
        ended = pb.AbandonUploadRequest(id=upload).SerializeToString()
        for key in (other, target.key, owner):
            method, head = SERVICE + "AbandonUpload", ("x-api-key", key)
            ((status, said),) = await call_all(target, method, [ended], head)
            if (status == "OK") != (key == owner) and status not in ("reset", "closed", "none"):
                target.wrong(f"AbandonUpload by another caller: {status} {said[:200]!r}")


ATTACKS = [
    *(
        Attack(f"registry: {run.__name__.replace('_', ' ')}", run, "registry")
        for run in (upload_lists, unread_upload_lists)
    ),
    *(
        Attack(f"registry, two persons: {run.__name__.replace('_', ' ')}", run, "two persons")
        for run in (foreign_uploads, upload_lists_over_grpc)
    ),
]
