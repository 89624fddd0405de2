"""Attacks on requests for moves that need two persons: decisions, races, and floods of requests."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any
from urllib.parse import quote

from protos.flambeau.v1 import registry_pb2 as pb
from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_grpc import deep, field, unknown
from tests.adversarial.attacks_registry import AT_ONCE, NAMES, POSITIONS, REFUSED, call_registry
from tests.adversarial.attacks_registry_grpc import REFUSED as REFUSED_OVER_GRPC
from tests.adversarial.attacks_registry_grpc import SERVICE
from tests.adversarial.http2_bytes import call_all

MOVES = 24
"""Moves asked for at once: more than may be open."""
DOCUMENTS = (
    b"", b"null", b"[]", b"{", b"\xff" * 1000, b"[" * 60_000, b'{"why":' * 10_000, b"1" * 60_000,
    b'{"why": 1}', b'{"why": "a", "why": "b"}', b'{"by": "ann"}',
    json.dumps({"why": "\0\x1b[2J\u202e"}).encode(), json.dumps({"why": "x" * 501}).encode(),
    json.dumps({"why": "\u20ac" * 2**20}).encode(), json.dumps({"why": "right"}).encode(),
)  # fmt: skip
WHY = b'{"why": "an attack"}'


async def _post(
    target: Target, person: int, path: str, body: bytes = WHY, model: str = "linear"
) -> tuple[str, bytes]:
    """Posts as one of the two persons."""
    fields = "content-type: application/json", f"x-api-key: {target.persons[person]}"
    return await call_registry(target, "POST", f"models/{model}/{path}", body, *fields)


async def _asked(target: Target, random: Random, person: int) -> int:
    """Asks for a move of an alias of its own; returns the number of the request, or 0."""
    alias = f"a{random.getrandbits(48):012x}"
    body = json.dumps({"version": 1, "why": "an attack"}).encode()
    status, said = await _post(target, person, f"aliases/{alias}", body)
    if status == "202":
        return int(json.loads(said)["request"]["number"])
    if status not in REFUSED:
        target.wrong(f"a move that needs two persons: {status} {said[:200]!r}")
    return 0


async def withdraw(target: Target, persons: Sequence[int] = (0, 1)) -> None:
    """Withdraws or refuses what is open, so that the next round finds places."""
    key = f"x-api-key: {target.persons[0]}"
    status, said = await call_registry(target, "GET", "models/linear/requests?limit=100", b"", key)
    if status != "200":
        return
    for one in json.loads(said)["requests"]:
        if one.get("state") in ("open", "approved"):
            for person in persons:
                await _post(target, person, f"requests/{one['number']}/refuse")


async def decisions(target: Target, random: Random) -> None:
    """Approves and refuses requests that are none, with documents that are none."""

    async def decide() -> None:
        number = quote(random.choice((*POSITIONS, "1", "2", "99999999", "999999999")), safe="")
        verb = random.choice(("approve", "refuse", "approve/refuse", "delete"))
        model = random.choice(("linear", "linear", "none", quote(random.choice(NAMES), safe="")))
        status, said = await _post(
            target,
            random.randrange(2),
            f"requests/{number}/{verb}",
            random.choice(DOCUMENTS),
            model,
        )
        if status not in (*REFUSED, "403"):
            target.wrong(f"{verb} of {number[:40]}: {status} {said[:200]!r}")

    await asyncio.gather(*(decide() for _ in range(AT_ONCE)))


async def decision_races(target: Target, random: Random) -> None:
    """Approves and refuses one request from many connections: it has one outcome."""
    number = await _asked(target, random, 0)
    if not number:
        await withdraw(target)
        return

    async def decide(person: int, verb: str) -> tuple[int, str, str]:
        status, said = await _post(target, person, f"requests/{number}/{verb}")
        if status not in ("200", "403", *REFUSED):
            target.wrong(f"{verb} of a request: {status} {said[:200]!r}")
        return person, verb, status

    acts = [(random.randrange(2), random.choice(("approve", "refuse"))) for _ in range(AT_ONCE)]
    done = await asyncio.gather(*(decide(*act) for act in acts))
    _judge(target, [(person, verb) for person, verb, status in done if status == "200"])


def _judge(target: Target, made: Sequence[tuple[int, str]]) -> None:
    """Checks the decisions that were taken about a request of the first person."""
    if (0, "approve") in made:
        target.wrong("the person who asked has approved")
    by_verb = Counter(verb for _, verb in made)
    if len(by_verb) > 1 or by_verb["refuse"] > 1:
        target.wrong(f"one request has several outcomes: {made}")


async def request_floods(target: Target, random: Random) -> None:
    """Asks for more moves than may be open, as both persons, and reads the list meanwhile."""
    asks = [_asked(target, random, n % 2) for n in range(MOVES)]
    key = f"x-api-key: {target.persons[0]}"
    limits = random.sample(("1", "100", "0", "-1", "101", "1e2", "9" * 40), 3)
    reads = [
        call_registry(target, "GET", f"models/linear/requests?limit={limit}", b"", key)
        for limit in limits
    ]
    found = await asyncio.gather(*asks, *reads)
    numbers = [number for number in found if isinstance(number, int) and number]
    if len(numbers) > len(set(numbers)):
        target.wrong(f"two requests have one number: {sorted(numbers)}")
    await withdraw(target)


async def cut_off_decisions(target: Target, random: Random) -> None:
    """Announces decisions, sends a part of each, and leaves."""
    for _ in range(AT_ONCE):
        size = random.choice((10, 1000, 2**20, 10**12))
        head = (
            f"POST /v1/registry/models/linear/requests/1/approve HTTP/1.1\r\nhost: x\r\n"
            f"x-api-key: {target.persons[1]}\r\ncontent-type: application/json\r\n"
        )
        with contextlib.suppress(ConnectionError):
            async with target.connection(target.http_port) as peer:
                await peer.send(f"{head}content-length: {size}\r\n\r\n".encode(), b'{"wh')
                target.count("left")


async def _over_grpc(
    target: Target, person: int, method: str, *contents: bytes
) -> list[tuple[str, bytes]]:
    key = ("x-api-key", target.persons[person])
    answers = await call_all(target, SERVICE + method, list(contents), key)
    for status, said in answers:
        if status in ("INTERNAL", "2"):
            target.wrong(f"{method}: {status} {said[:200]!r}")
    return answers


async def messages_over_grpc(target: Target, random: Random) -> None:
    """Sends decisions deep, unknown, damaged and very many fields."""

    def make() -> bytes:
        size = random.choice((10, 1000, 7000, 60_000))
        some = field(random.randrange(1, 4), random.choice((b"", b"\xff", b"linear")))
        kind = random.choice((deep, unknown, None))
        made = kind(random, size) if kind is not None else some * (size // len(some) + 1)
        return made[: random.choice((len(made), random.randrange(len(made) + 1)))]

    method = random.choice(("ApproveMove", "RefuseMove", "ListMoveRequests"))
    for status, said in await _over_grpc(
        target, random.randrange(2), method, *(make() for _ in range(AT_ONCE))
    ):
        if status == "OK" and method != "ListMoveRequests":
            target.wrong(f"{method} of nothing: {said[:200]!r}")


async def decision_races_over_grpc(target: Target, random: Random) -> None:
    """Approves and refuses one request in many calls of two connections."""
    number = await _asked(target, random, 0)
    if not number:
        await withdraw(target)
        return
    asked: dict[str, Any] = {"model": "linear", "number": number, "why": "an attack"}
    acts = {
        (0, "ApproveMove"): pb.ApproveMoveRequest(**asked),
        (1, "ApproveMove"): pb.ApproveMoveRequest(**asked),
        (1, "RefuseMove"): pb.RefuseMoveRequest(**asked),
    }
    found = await asyncio.gather(
        *(
            _over_grpc(target, person, method, *[message.SerializeToString()] * 4)
            for (person, method), message in acts.items()
        )
    )
    made = []
    for (person, method), answers in zip(acts, found, strict=True):
        for status, said in answers:
            if status == "OK":
                made.append((person, "approve" if method == "ApproveMove" else "refuse"))
            elif status not in (*REFUSED_OVER_GRPC, "7", "none"):  # 7 is PERMISSION_DENIED
                target.wrong(f"{method}: {status} {said[:200]!r}")
    _judge(target, made)


ATTACKS = [
    Attack(f"registry, two persons: {run.__name__.replace('_', ' ')}", run, "two persons")
    for run in (
        decisions,
        decision_races,
        request_floods,
        cut_off_decisions,
        messages_over_grpc,
        decision_races_over_grpc,
    )
]
