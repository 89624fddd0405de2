"""Attacks on removals of aliases: names, callers without the grant, and races with other moves."""

import asyncio
import contextlib
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from urllib.parse import quote

from model_store.pointers import Pointers
from model_store.store import ModelStore
from protos.flambeau.v1 import registry_pb2 as pb
from tests.adversarial.attack import Attack, Target
from tests.adversarial.attacks_approvals import withdraw
from tests.adversarial.attacks_registry import AT_ONCE, NAMES, REFUSED, call_registry
from tests.adversarial.attacks_registry_grpc import REFUSED as REFUSED_OVER_GRPC
from tests.adversarial.attacks_registry_grpc import SERVICE
from tests.adversarial.http2_bytes import call_all
from tests.fixtures import onnx_models

AS_JSON = "content-type: application/json"
ALIASES = (
    *NAMES, "production", "PRODUCTION", "7", "canry", "a" * 129, "a\r\nx: y", "\u202ea", "latest",
)  # fmt: skip
REASONS = ("", "why", "x" * 501, "\0\x1b[2J\u202e", "\ud800", "€" * 4000)
FORBIDDEN_OVER_GRPC = ("UNAUTHENTICATED", "7", "none")
"""7 is PERMISSION_DENIED."""
STORM = 50
"""Removals of one connection, sent without waiting for answers."""


def _removal(random: Random, alias: str) -> str:
    why = quote(random.choice(REASONS).encode("utf-8", "replace"), safe="")
    return f"aliases/{quote(alias, safe='')}?why={why}"[:8000]


@contextlib.asynccontextmanager
async def _model(target: Target, random: Random) -> AsyncIterator[tuple[ModelStore, str]]:
    """Publishes two versions of a model, of which production is 1 and canary 2, for a while."""
    store, name = ModelStore(str(target.store)), f"raced-{random.getrandbits(48):012x}"
    try:
        for scale in (1.0, 2.0):
            await asyncio.to_thread(onnx_models.publish, store.url, name, onnx_models.linear(scale))
        await asyncio.to_thread(store.promote, name, 1)
        await asyncio.to_thread(store.promote, name, 2, "canary")
        yield store, name
    finally:
        await asyncio.to_thread(shutil.rmtree, target.store / name, ignore_errors=True)


async def _history(store: ModelStore, model: str) -> list[Pointers]:
    return await asyncio.to_thread(store.history, model)


def _check_history(target: Target, moves: list[Pointers]) -> None:
    """Checks that no generation is missing, and that no move has removed production."""
    if [one.generation for one in moves] != [*range(1, len(moves) + 1)]:
        target.wrong(f"generations {[one.generation for one in moves]}")
    has_production = ["production" in one.aliases for one in moves]
    if has_production != sorted(has_production):
        target.wrong("production was removed")


async def alias_removals(target: Target, random: Random) -> None:
    """Removes aliases that are none, for reasons that are none, in storms of one connection."""
    requests = []
    for _ in range(STORM):
        model = random.choice(("linear", "none", quote(random.choice(NAMES), safe="")))
        path = f"/v1/registry/models/{model[:4000]}/{_removal(random, random.choice(ALIASES))}"
        requests.append(f"DELETE {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    async with target.connection(target.http_port) as peer:
        with contextlib.suppress(ConnectionError):
            await peer.send(*requests)
        for _ in requests:
            status, said = await peer.answer()
            target.count(status)
            if status not in (*REFUSED, "301"):
                target.wrong(f"a removal of no alias: {status} {said[:200]!r}")
            if status in ("closed", "no answer"):
                return


async def removal_races(target: Target, random: Random) -> None:
    """Moves and removes one alias from many connections: each answer is one generation."""
    async with _model(target, random) as (store, model):
        before = await _history(store, model)

        removal = pb.RemoveAliasRequest(model=model, alias="canary", why="a race")

        async def act(n: int) -> str:
            if n % 4 == 1:
                path = f"models/{model}/aliases/canary?why=a%20race"
                return (await call_registry(target, "DELETE", path))[0]
            if n % 4 == 3:
                sent = [removal.SerializeToString()]
                return (await call_all(target, SERVICE + "RemoveAlias", sent))[0][0]
            body = json.dumps({"version": random.choice((1, 2)), "why": "a race"}).encode()
            path = f"models/{model}/aliases/canary"
            status, said = await call_registry(target, "POST", path, body, AS_JSON)
            is_move = status == "200" and json.loads(said)["changes"]
            return "moved" if is_move else f"post {status}"

        production = f"models/{model}/aliases/production"
        acts = asyncio.gather(*(act(n) for n in range(2 * AT_ONCE)))
        status, said = await call_registry(target, "DELETE", production)
        if status not in REFUSED:
            target.wrong(f"a removal of production: {status} {said[:200]!r}")
        done = Counter(await acts)
        moves = await _history(store, model)
        _check_history(target, moves)
        made = done["200"] + done["OK"] + done["moved"]
        lost = sum(done[one] for one in ("closed", "post closed", "reset", "none"))
        if not made <= len(moves) - len(before) <= made + lost:
            target.wrong(f"{made} moves were answered, {len(moves) - len(before)} are stored")
        known = {"200", "moved", "OK", "none", *REFUSED, *REFUSED_OVER_GRPC}
        if strange := done.keys() - known - {f"post {one}" for one in ("200", *REFUSED)}:
            target.wrong(f"a race of removals: {strange}")


async def removals_during_rollouts(target: Target, random: Random) -> None:
    """Removes the alias of a candidate while its rollout starts, pauses, is promoted and ends."""
    async with _model(target, random) as (store, model):
        rollout = json.dumps({"version": 2, "why": "a race"}).encode()

        async def act(verb: str) -> None:
            if verb == "remove":
                path, method, body = f"models/{model}/aliases/canary", "DELETE", b""
            elif verb == "canary":
                path, method, body = f"models/{model}/aliases/canary", "POST", b'{"version": 2}'
            else:
                body = b"{}" if verb else rollout
                path, method = f"models/{model}/rollout{verb}", "POST"
            status, said = await call_registry(target, method, path, body, AS_JSON)
            if status not in ("200", *REFUSED):
                target.wrong(f"{verb or 'start'} of a rollout: {status} {said[:200]!r}")

        verbs = ["", *random.choices(("/pause", "/resume", "/promote", "/abort", ""), k=AT_ONCE)]
        await asyncio.gather(*(act(verb) for verb in (*verbs, *["remove", "canary"] * 4)))
        _check_history(target, await _history(store, model))
        status, said = await call_registry(target, "GET", f"models/{model}/rollout")
        if status not in ("200", "503", "closed"):
            target.wrong(f"the rollout after removals: {status} {said[:200]!r}")
        newest = await asyncio.to_thread(store.pointers, model)
        if newest is None or newest.aliases["production"] not in (1, 2):
            target.wrong(f"pointers after removals: {newest}")


async def removals_without_grants(target: Target, random: Random) -> None:
    """Removes an alias as callers without the grant, over REST and gRPC."""
    async with _model(target, random) as (store, model):
        before = await _history(store, model)

        async def over_rest(key: str) -> None:
            path = f"models/{model}/{_removal(random, random.choice(('canary', 'production')))}"
            status, said = await call_registry(target, "DELETE", path, b"", f"x-api-key: {key}")
            if status not in (*REFUSED, "401", "403"):
                target.wrong(f"a removal without a grant: {status} {said[:200]!r}")

        async def over_grpc(key: str) -> None:
            asked = [
                pb.RemoveAliasRequest(model=model, alias=alias).SerializeToString()
                for alias in ("canary", "production", "x" * 8000)
            ]
            method, head = SERVICE + "RemoveAlias", ("x-api-key", key)
            for status, said in await call_all(target, method, asked, head):
                if status not in (*REFUSED_OVER_GRPC, *FORBIDDEN_OVER_GRPC):
                    target.wrong(f"RemoveAlias without a grant: {status} {said[:200]!r}")

        keys = (target.key, "fl_" + "x" * 40) * 4
        await asyncio.gather(*map(over_rest, keys), *map(over_grpc, keys[:2]))
        if await _history(store, model) != before:
            target.wrong("a caller without a grant has moved an alias")


async def removals_of_two_persons(target: Target, random: Random) -> None:
    """Asks for removals that need two persons, and races their approvals with promotions."""
    alias, keys = f"a{random.getrandbits(48):012x}", [f"x-api-key: {k}" for k in target.persons]
    path, move = f"models/linear/aliases/{alias}", b'{"version": 1, "why": "a race"}'
    store = ModelStore(str(target.store))
    await asyncio.to_thread(store.promote, "linear", 1, alias)
    asked = await asyncio.gather(
        *(call_registry(target, "DELETE", path, b"", keys[n % 2]) for n in range(4)),
        *(call_registry(target, "POST", path, move, AS_JSON, keys[n % 2]) for n in range(2)),
        call_registry(target, "DELETE", "models/linear/aliases/production", b"", keys[0]),
    )
    for status, said in asked:
        if status not in ("200", "202", *REFUSED):
            target.wrong(f"a removal that needs two persons: {status} {said[:200]!r}")
        if status == "200" and json.loads(said)["changes"]:
            target.wrong(f"one person has moved an alias: {said[:200]!r}")
    numbers = [json.loads(said)["request"]["number"] for status, said in asked if status == "202"]
    decisions = [
        call_registry(
            target, "POST", f"models/linear/requests/{number}/{verb}", b"{}", AS_JSON, key
        )
        for number in numbers
        for verb in ("approve", "refuse")
        for key in keys
    ]
    for status, said in await asyncio.gather(*decisions):
        if status not in ("200", "403", *REFUSED):
            target.wrong(f"a decision about a removal: {status} {said[:200]!r}")
    _check_history(target, await _history(store, "linear"))
    await withdraw(target)
    newest = await asyncio.to_thread(store.pointers, "linear")
    if newest is not None and alias in newest.aliases:  # a model has a limited number of them
        left = {name: version for name, version in newest.aliases.items() if name != alias}
        await asyncio.to_thread(store.set_aliases, "linear", left)


ATTACKS = [
    *(
        Attack(f"registry: {run.__name__.replace('_', ' ')}", run, "registry")
        for run in (alias_removals, removal_races, removals_during_rollouts)
    ),
    *(
        Attack(f"registry, two persons: {run.__name__.replace('_', ' ')}", run, "two persons")
        for run in (removals_without_grants, removals_of_two_persons)
    ),
]
