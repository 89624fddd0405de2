"""Attacks on TorchServe's API: forms, management, downloads, and answers that nobody reads."""

import asyncio
import contextlib
import functools
import json
from random import Random
from urllib.parse import quote

from tests.adversarial.attack import Attack, Peer, Target
from tests.fixtures.torchserve_server import TorchServeProcess

INFERENCE, MANAGEMENT = "inference_address", "management_address"
BODY_BYTES = 6_000_000
"""Near the limit of a body, 6,553,500."""
FLOOD_S = 0.5
AT_ONCE = 8
NUMBERS = ("-1", "0", "1", "65", "2147483647", "2147483648", "1e9", "x", "", "0x10", "9" * 4000)
NAMES = ("echo", "echo/1.0", "none", "echo/9", "%00", "..%2F..", "echo%2F1.0", "a" * 2000, "é")
URLS = (
    "junk.mar",
    "echo.mar",
    "../echo.mar",
    "file:///dev/zero",
    "file:///proc/kmsg",
    "http://127.0.0.1:1/x.mar",
    "http://[::1]:x/",
    "https://",
    "x" * 7000,
)


def _ports(target: Target) -> dict[str, int]:
    assert isinstance(target.server, TorchServeProcess)
    return target.server.ports


async def _call(
    target: Target, port: str, method: str, path: str, body: bytes = b"", *fields: str
) -> tuple[str, bytes]:
    """Sends one request on a new connection; counts and returns its status."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *fields]
    answer = "closed", b""
    async with target.connection(_ports(target)[port]) as peer:
        peer.writer.writelines(["\r\n".join([*lines, "", ""]).encode(), body])
        with contextlib.suppress(ConnectionError):
            await peer.writer.drain()
        answer = await peer.answer()
        target.count(answer[0])
    return answer


async def _predict(target: Target, body: bytes, content_type: str) -> None:
    fields = (f"content-type: {content_type}",)
    status, said = await _call(target, INFERENCE, "POST", "/predictions/echo", body, *fields)
    if status not in ("200", "400", "413", "503", "closed"):
        target.wrong(f"{content_type[:80]}: {status} {said[:200]!r}")


@functools.cache
def _multiparts() -> tuple[bytes, ...]:
    """Returns bodies that cost most to read: parts, near misses, heads and no ends."""
    head = b'--b\r\nContent-Disposition: form-data; name="a"\r\n'
    part = head + b"\r\n\r\n"
    return (
        part * 1000 + b"--b--",
        part * (BODY_BYTES // len(part)),
        b"--b\r\n" * (BODY_BYTES // 5),
        head + b"\r\n" + b"\r\n--" * (BODY_BYTES // 4) + b"\r\n--b--",
        head + b"\r\n" + b"\r\n--c" * (BODY_BYTES // 5),
        b"--b\r\n" + b"x: y\r\n" * (BODY_BYTES // 6),
        b"--b\r\n" + b"x" * BODY_BYTES,
        head + b"\r\n" + b"\0" * BODY_BYTES + b"\r\n--b--",
        b"--b" + b" " * BODY_BYTES,
    )


async def multipart(target: Target, random: Random) -> None:
    """Sends bodies of many parts, of large heads, and without ends, several at once."""
    boundary = random.choice(
        ("b", '"b"', "b; x=" + "y" * 4000, "b" * 5000, '"' + "\\b" * 200 + '"')
    )
    bodies = random.choices(_multiparts(), k=AT_ONCE)
    kind = f"multipart/form-data; boundary={boundary}"
    await asyncio.gather(*(_predict(target, body, kind) for body in bodies))


async def forms(target: Target, random: Random) -> None:
    """Sends forms of one long field of escapes, and of very many fields."""
    escapes = (b"a=" + b"%41" * (BODY_BYTES // 3), b"%" * BODY_BYTES, b"+" * BODY_BYTES)
    bodies = (*escapes, b"a&" * (BODY_BYTES // 2), b"&" * BODY_BYTES, b"a=%zz&" * 1000)
    chosen = random.choices(bodies, k=AT_ONCE)
    kind = "application/x-www-form-urlencoded"
    await asyncio.gather(*(_predict(target, body, kind) for body in chosen))


@functools.cache
def _rows() -> tuple[bytes, ...]:
    """Returns rows that no version takes, and those that cost most to refuse."""
    header = b"{'descr': '%s', 'fortran_order': False, 'shape': (%s,)}"
    return (
        b"[" * BODY_BYTES,
        b"[" * 900 + b"]" * 900,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"[" + b"0," * (BODY_BYTES // 2 - 1) + b"0]",
        b"[" + b"[]," * (BODY_BYTES // 3 - 1) + b"[1]]",
        b"[" + b"{}," * (BODY_BYTES // 3 - 1) + b"{}]",
        b"1" * BODY_BYTES,
        b'{"x":"' + b"[" * (BODY_BYTES - 10) + b'"}',
        b'{"' + b"x" * (BODY_BYTES - 10) + b'":1}',
        *(
            b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 16
            for text in (
                header % (b"<f4", b"9" * 50),
                header % (b"<f4", b"-1"),
                header % (b"|O", b"4"),
                header % (b"<f4", b"(" * 5000),
                b"-" * 9000 + b"1",
                b"9**9**9**9",
            )
        ),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{" * 1000,
        b"\x93NUMPY" + b"\0" * (BODY_BYTES - 10),
    )


async def rows(target: Target, random: Random) -> None:
    """Sends rows to an exported version, bad ones beside good ones: both come into one batch."""
    good = [float(random.randrange(100)) for _ in range(4)]

    async def ask(body: bytes, wanted: str) -> bytes:
        kind = random.choice(("application/json", "text/plain", "application/octet-stream"))
        fields = f"content-type: {kind}"
        found = await _call(target, INFERENCE, "POST", "/predictions/doubling", body, fields)
        if found[0] not in (wanted, "503", "closed"):
            target.wrong(f"{body[:100]!r}: {found[0]} {found[1][:200]!r}")
        return found[1] if found[0] == "200" else b""

    bad = random.choices(_rows(), k=AT_ONCE // 2)
    calls = [ask(body, "400") for body in bad]
    calls += [ask(json.dumps(good).encode(), "200") for _ in range(AT_ONCE // 2)]
    for said in await asyncio.gather(*calls):
        if said and json.loads(said) != {"y": [2 * number for number in good]}:
            target.wrong(f"{good}: {said[:200]!r}")


async def paths(target: Target, random: Random) -> None:
    """Asks for names and paths that mean nothing, on both ports."""
    name = random.choice(NAMES)
    path = random.choice(
        (f"/predictions/{name}", f"/explanations/{name}/x/y/z", f"/v1/models/{name}:predict",
         f"/models/{name}", f"/models/{name}/set-default", f"/invocations?model_name={quote(name)}",
         f"/{name}/predict?{'a=b&' * 500}", "/" * 4000, "/models?" + "limit=1&" * 500),
    )  # fmt: skip
    method = random.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"))
    if method == "DELETE" and "echo" in name:
        method = "GET"  # other attacks ask for it
    port = random.choice((INFERENCE, MANAGEMENT))
    fields = ("connection: close",) if method == "HEAD" else ()  # its answer has a length, no body
    await _call(target, port, method, path.replace("é", "%C3%A9"), b"", *fields)


async def numbers(target: Target, random: Random) -> None:
    """Manages with numbers that make no sense."""
    least, most = random.choices(NUMBERS, k=2)
    path = random.choice(
        (f"/models/stream?min_worker=1&max_worker={most}&x={least}",
         f"/models/none?min_worker={least}&max_worker={most}",
         f"/models/echo/7?min_worker={least}&synchronous=true"),
    )  # fmt: skip
    await _call(target, MANAGEMENT, "PUT", path)
    query = f"limit={least}&next_page_token={most}"
    status, said = await _call(target, MANAGEMENT, "GET", f"/models?{query}")
    if status == "200" and "models" not in json.loads(said):
        target.wrong(f"{query[:100]}: {said[:200]!r}")
    batch = f"batch_size={least}&max_batch_delay={most}&response_timeout={least}"
    await _call(target, MANAGEMENT, "POST", f"/models?url=junk.mar&{batch}")


async def registrations(target: Target, random: Random) -> None:
    """Registers archives that are none, or do not start, under names that do not matter."""
    url, name = quote(random.choice(URLS), safe=""), f"n{random.randrange(3)}"
    workers = random.choice(("0", "0", "0", "1"))
    if workers == "1":
        url = "broken.mar"
    path = f"/models?url={url}&model_name={name}&initial_workers={workers}"
    status, said = await _call(target, MANAGEMENT, "POST", path)
    if status == "200" and b"registered with 0" not in said:
        target.wrong(f"{path}: {said[:200]!r}")
    await _call(target, MANAGEMENT, "DELETE", f"/models/{name}")


async def races(target: Target, random: Random) -> None:
    """Registers and unregisters one name many times at once."""
    calls = [("POST", "/models?url=echo.mar&model_name=raced")] * 4
    calls += [("DELETE", "/models/raced")] * 3 + [("GET", "/models/raced/all")]
    random.shuffle(calls)
    await asyncio.gather(*(_call(target, MANAGEMENT, *call) for call in calls))


async def slow_downloads(target: Target, random: Random) -> None:
    """Has the server download from a site that sends a byte now and then, and redirects."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            if random.random() < 0.5:
                writer.write(b"HTTP/1.1 302 x\r\nlocation: http://127.0.0.1/x\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                for _ in range(5):
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(FLOOD_S / 5)
        writer.close()

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as site:
        url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/m.mar"
        path = f"/models?url={quote(url, safe='')}"
        await asyncio.gather(*(_call(target, MANAGEMENT, "POST", path) for _ in range(AT_ONCE)))


async def unread_streams(target: Target, random: Random) -> None:
    """Asks for answers without end, reads some or none, and leaves."""
    body = b"%d %d" % (10**9, random.choice((1, 1000, 1_000_000)))
    head = f"POST /predictions/stream HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    async with contextlib.AsyncExitStack() as stack:
        peers: list[Peer] = []
        for _ in range(AT_ONCE):
            opened = target.connection(_ports(target)[INFERENCE])
            peers.append(await stack.enter_async_context(opened))
            await peers[-1].send(head.encode() * random.choice((1, 4)), body)
        await asyncio.sleep(FLOOD_S)
        target.count("held")


async def half_bodies(target: Target, random: Random) -> None:
    """Announces bodies, sends a part of each, and leaves."""
    kind = random.choice(("multipart/form-data; boundary=b", "application/json"))
    for _ in range(AT_ONCE):
        size = random.choice((10, 100_000, BODY_BYTES, 10**12))
        head = f"POST /predictions/echo HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n"
        async with target.connection(_ports(target)[INFERENCE]) as peer:
            await peer.send(f"{head}content-type: {kind}\r\n\r\n".encode(), b"--b\r\n")
            target.count("left")
    # The server takes each in 0.1 to 0.3 ms, one in a turn. While it has no core, on a busy
    # machine, the system would queue hundreds, and who connects next would wait for all of them;
    # open connections would not, as those of other servers show.
    await _call(target, INFERENCE, "GET", "/ping")


ATTACKS = [
    Attack(f"torchserve: {run.__name__.replace('_', ' ')}", run, "torchserve")
    for run in (
        multipart, forms, rows, paths, numbers, registrations, races, slow_downloads,
        unread_streams, half_bodies,
    )
]  # fmt: skip
