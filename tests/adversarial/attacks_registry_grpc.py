"""Attacks on the registry over gRPC: messages, declarations, chunks, downloads and watches."""

import asyncio
import contextlib
import hashlib
import struct
from random import Random

from protos.flambeau.v1 import registry_pb2 as pb
from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_grpc import deep, field, unknown, varint
from tests.adversarial.attacks_registry import AT_ONCE, CHUNK_BYTES, HELD_S, NAMES
from tests.adversarial.http2_bytes import DATA as DATA_FRAME
from tests.adversarial.http2_bytes import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    WIDE_OPEN,
    Heard,
    block,
    call_all,
    data_frames,
    frame,
    message,
)

SERVICE = "/flambeau.v1.Registry/"
METHODS = tuple(one.name for one in pb.DESCRIPTOR.services_by_name["Registry"].methods)
ENDING = tuple(one for one in METHODS if one != "WatchEvents")
"""Calls that end by themselves."""
REFUSED = (
    "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "6", "reset", "closed",
)  # fmt: skip
"""6 is ALREADY_EXISTS, the code of conflicts."""
SIZES = (10, 1000, 8000, 60_000, 520_000, CHUNK_BYTES + 5000)


async def _call(target: Target, method: str, *contents: bytes) -> list[tuple[str, bytes]]:
    answers = await call_all(target, SERVICE + method, list(contents))
    for status, said in answers:
        if status in ("INTERNAL", "2"):
            target.wrong(f"{method}: {status} {said[:200]!r}")
    return answers


def _text(random: Random) -> str:
    return random.choice((*NAMES, "linear", "1", "x" * 8000))


async def messages(target: Target, random: Random) -> None:
    """Sends each call deep, unknown, damaged and very many fields."""

    def make() -> bytes:
        size = random.choice(SIZES)
        some = field(random.randrange(1, 5), random.choice((b"", b"\xff", b"linear")))
        kind = random.choice((deep, unknown, None))
        made = kind(random, size) if kind is not None else some * (size // len(some) + 1)
        return made[: random.choice((len(made), random.randrange(len(made) + 1)))]

    await _call(target, random.choice(ENDING), *(make() for _ in range(AT_ONCE)))


def _declaration(random: Random) -> bytes:
    names = random.choice((NAMES, ("manifest.json",), tuple(f"f{n}" for n in range(2000))))
    empty = varint(3 << 3 | 2) + b"\x00"
    files = [
        pb.DeclaredFile(
            file=name.encode("utf-8", "replace").decode(),
            size_bytes=random.choice((0, 2, 2**40, 2**63)),
            sha256=random.choice(("0" * 64, "x", "")),
        )
        for name in names[: random.choice((1, 16, 2000))]
    ]
    found: bytes = pb.BeginUploadRequest(
        model=random.choice(("evil", _text(random))),
        version=random.choice((0, 1, 2**32 - 1)),
        files=files,
    ).SerializeToString()
    return found + random.choice((b"", b"", empty * random.choice((10, 2000, 250_000))))


async def declarations(target: Target, random: Random) -> None:
    """Begins uploads, most of which must be refused, several at once."""
    answers = await _call(target, "BeginUpload", *(_declaration(random) for _ in range(AT_ONCE)))
    begun = [said for status, said in answers if status == "OK"]
    uploads = [pb.Upload.FromString(said).id for said in begun]
    ends = [pb.AbandonUploadRequest(id=one).SerializeToString() for one in uploads]
    if ends:
        await _call(target, "AbandonUpload", *ends)


async def chunks(target: Target, random: Random) -> None:
    """Appends to one upload from several calls: wrong places, sizes, names and messages."""
    digest = hashlib.sha256(random.randbytes(8)).hexdigest()
    files = [
        pb.DeclaredFile(file="manifest.json", size_bytes=2, sha256=digest),
        pb.DeclaredFile(file="weights", size_bytes=2**24, sha256=digest),
    ]
    asked = pb.BeginUploadRequest(model="evil", version=2, files=files).SerializeToString()
    ((status, said),) = await _call(target, "BeginUpload", asked)
    if status != "OK":
        return
    upload = pb.Upload.FromString(said).id

    def chunk() -> bytes:
        size = random.choice((0, 1, 1000, 2**20, CHUNK_BYTES, CHUNK_BYTES + 1))
        found: bytes = pb.AppendChunkRequest(
            id=random.choice((upload, upload, "0" * 32, "../x")),
            file=random.choice(("weights", "weights", "manifest.json", "../../evil", "x" * 5000)),
            offset=random.choice((0, size, 2**62, 2**64 - 1)),
            data=bytes(size),
        ).SerializeToString()
        return found + random.choice(
            (b"", b"", b"\x22\x00" * 1000, field(4, b"again"), b"\x22\xff")
        )

    await _call(target, "AppendChunk", *(chunk() for _ in range(AT_ONCE // 2)))
    end = pb.FinishUploadRequest(id=upload).SerializeToString()
    ((status, said),) = await _call(target, "FinishUpload", end)
    if status == "OK":
        target.wrong(f"an upload without its bytes was published: {said[:200]!r}")
    await _call(target, "AbandonUpload", pb.AbandonUploadRequest(id=upload).SerializeToString())


async def names(target: Target, random: Random) -> None:
    """Asks for names that climb out of their folder, or are none."""

    def fields() -> bytes:
        return b"".join(
            field(number, _text(random).encode("utf-8", "replace"))
            for number in random.sample(range(1, 5), 3)
        )

    method = random.choice(ENDING)
    for status, said in await _call(target, method, *(fields() for _ in range(AT_ONCE))):
        if status == "OK" and b"root:" in said:
            target.wrong(f"{method} gave a file of the system")


async def unread_downloads(target: Target, random: Random) -> None:
    """Asks for files, many times on each connection, and lets the server send nothing."""
    closed = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, random.choice((0, 1, 100))))
    asked = pb.DownloadRequest(model="linear", version="1", file="manifest.json")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(AT_ONCE):
            peer = await stack.enter_async_context(target.connection(target.grpc_port))
            calls = [
                frame(HEADERS, END_HEADERS, stream, block(f"{SERVICE}Download"))
                + frame(DATA_FRAME, END_STREAM, stream, message(asked.SerializeToString()))
                for stream in range(1, 2 * random.choice((1, 60)), 2)
            ]
            with contextlib.suppress(ConnectionError):
                await peer.send(PREFACE + closed, *calls)
        await asyncio.sleep(HELD_S)
        target.count("held")


async def watches(target: Target, random: Random) -> None:
    """Watches events from more calls than may, and leaves in the middle of an answer."""
    asked = pb.WatchEventsRequest(after=random.choice(("", "0", "1", "x", "9" * 40)))
    async with target.connection(target.grpc_port) as peer:
        heard = Heard()
        listening = asyncio.create_task(heard.listen(peer))
        count = random.choice((1, 20, 90))
        with contextlib.suppress(ConnectionError):
            await peer.send(WIDE_OPEN)
            for stream in range(1, 2 * count, 2):
                head = frame(HEADERS, END_HEADERS, stream, block(f"{SERVICE}WatchEvents"))
                body = data_frames(stream, message(asked.SerializeToString()))
                await peer.send(head, body, frame(DATA_FRAME, END_STREAM, stream))
        await asyncio.sleep(HELD_S)
        listening.cancel()
        for status in heard.statuses.values():
            target.count(status)
            if status not in REFUSED:
                target.wrong(f"a watch ended with {status}")
        target.count("held")


ATTACKS = [
    Attack(f"registry over gRPC: {run.__name__.replace('_', ' ')}", run, "registry")
    for run in (messages, declarations, chunks, names, unread_downloads, watches)
]
