"""TLS handshakes that stop; records that are expensive to read."""

import asyncio
import contextlib
import ssl
from random import Random

from tests.adversarial.attack import Attack, Peer, Target

PEERS = 400
HELLO_BYTES = 131_000
_BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
ASKED = b"POST /v2/models/linear/infer HTTP/1.1\r\nhost: x\r\n" + (
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _client_hello() -> bytes:
    """Returns the first message of a client."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        _trusting().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def _claiming(size: int, sent: int) -> bytes:
    """Returns records with the beginning of a ClientHello of some size."""
    content = (b"\x01" + size.to_bytes(3, "big") + b"\x03\x03").ljust(sent, b"\0")
    parts = [content[at : at + 16_384] for at in range(0, len(content), 16_384)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


async def handshakes_that_stop(target: Target, random: Random) -> None:
    """Begins TLS handshakes, and stays connected; or reconnects."""
    hello = _client_hello()
    kinds = (
        hello, hello, hello[:9], hello[:-1], b"", b"\x16", _claiming(HELLO_BYTES, 20),
        _claiming(HELLO_BYTES, HELLO_BYTES), b"GET / HTTP/1.1\r\n\r\n", hello + b"\x14\x03\x03\x00",
    )  # fmt: skip
    sent, port = random.choice(kinds), random.choice((target.http_port, target.grpc_port))
    stay_s = random.choice((0.0, 0.1, 3.0))

    async def one() -> None:
        async with target.connection(port) as peer:
            await peer.send(sent)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stay_s):
                    while await peer.reader.read(65_536):
                        pass

    await asyncio.gather(*(one() for _ in range(PEERS)), return_exceptions=True)


async def small_records(target: Target, random: Random) -> None:
    """Sends requests in records of one or a few bytes, or in none."""
    size = random.choice((1, 1, 3, 50))
    tls = _trusting()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    sealed = tls.wrap_bio(incoming, outgoing)

    async def greet(peer: Peer) -> None:
        while True:
            try:
                sealed.do_handshake()
                break
            except ssl.SSLWantReadError:
                await peer.send(outgoing.read())
                incoming.write(await peer.reader.read(65_536))
        await peer.send(outgoing.read())

    async with target.connection(target.http_port) as peer:
        await greet(peer)
        asked = ASKED * 40
        reading = asyncio.create_task(peer.reader.read())
        while not target.over and not reading.done():
            for at in range(0, len(asked), size):
                sealed.write(asked[at : at + size])
            await peer.send(outgoing.read())
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


ATTACKS = (
    Attack("TLS: handshakes that stop", handshakes_that_stop, "tls"),
    Attack("TLS: small records", small_records, "tls"),
)
