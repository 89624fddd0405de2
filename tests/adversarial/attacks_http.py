"""Bytes of HTTP/1 that cost a server more than they cost their sender."""

from random import Random

from tests.adversarial.attack import Attack, Target

PATH = b"/v2/models/linear/infer"


async def bare_line_ends(target: Target, random: Random) -> None:
    """Nothing but CRLFs, which RFC 9112 (2.2) has a server skip before a request."""
    ends = b"\r\n" * random.choice((1, 1000, 32_000))
    async with target.connection(target.http_port) as peer:
        for _ in range(2_000):
            if target.over:
                break
            await peer.send(ends)
        await peer.send(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        target.count(await peer.status())


ATTACKS = (Attack("HTTP/1: nothing but line ends", bare_line_ends),)
