"""Pipelines: items of any number and size, callers who leave in the middle, and hostile graphs.

`each` runs a model for every item of a request that is wanted; `reader` finds items and scores
them. A graph of the store is hostile, too: it may name itself, form a cycle with another version's,
or have more dimensions than a tensor.
"""

import asyncio
import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from flambeau.protocol.tensors import Array
from tests.adversarial.attack import Attack, Peer, Target

CALLERS = 200
MAX_ITEMS = 1024
"""Items of one request that a server takes."""
ITEMS = (
    (1, 0, 1), (1, 1, 1), (8, 128, 1), (8, 128, 1024), (8, 129, 1), (1, 1024, 1), (1, 2**20, 0),
    (1, 2**22, 1), (8, 2**12, 64), (0, 4, 4), (1, 2**24, 0), (8, 4, 2**16),
    (8, 2**17, 0), (8, 2**17 + 1, 0), (8, 128, 2**13),
)  # fmt: skip
"""Shapes [rows, items, values]; the last ones have too many items, too many bytes, or none."""
FIELDS: tuple[tuple[tuple[str | int, ...], Any], ...] = (
    (("graph", "steps", 1, "model"), "hostile@1"),
    (("graph", "steps", 1, "model"), "nobody@^1"),
    (("graph", "steps", 0, "model"), "reader@^1"),
    (("graph", "steps", 0, "model"), "../x@^1"),
    (("graph", "steps", 0, "model"), f"finder@^{10**300}"),
    (("graph", "steps", 1, "where"), "score.score"),
    (("graph", "steps", 1, "for_each"), "input.x"),
    (("graph", "steps", 1, "inputs"), {f"x{n}": f"input.x{n}" for n in range(64)}),
    (("graph", "steps"), [{"name": f"s{n}", "model": "finder@^1", "inputs": {"x": "input.x"}}
                          for n in range(10_000)]),
    (("graph", "outputs"), {"scores": ["find.crops"] * 64}),
    (("graph", "steps", 1, "inputs"), {f"x{n}": ["find.crops"] * 64 for n in range(64)}),
    (("graph", "steps", 0, "model"), "each@^1"),
    (("recorded_with",), {}),
    (("recorded_with",), {"finder@^1": "9" * 10**5, "scorer@^1": "\0"}),
    (("tolerance",), {"max_abs_difference": -1e300, "min_agreement": 1e300}),
)  # fmt: skip
"""Fields of a pipeline's manifest, and hostile values."""


def _request(model: str, arrays: dict[str, Array]) -> bytes:
    """Returns a request in binary data."""
    inputs = [
        {
            "name": name, "datatype": "BOOL" if array.dtype == np.bool_ else "FP32",
            "shape": list(array.shape), "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]  # fmt: skip
    text = json.dumps({"inputs": inputs}).encode()
    data = b"".join(array.tobytes() for array in arrays.values())
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1", "host: x",
        f"inference-header-content-length: {len(text)}",
        f"content-length: {len(text) + len(data)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + text + data


def _items(random: Random) -> tuple[dict[str, Array], Array | None]:
    """Returns the inputs of `each`, and the outputs if they are few enough to compare."""
    shape = random.choice(ITEMS)
    values = np.full(shape, random.choice((1.0, float("nan"), float("-inf"), 1e38)), np.float32)
    chosen = random.choice((0.0, 0.5, 1.0))
    wanted = np.random.default_rng(random.randrange(2**32)).random(shape[:2]) < chosen
    is_small = wanted.any() and 0 < values.size <= MAX_ITEMS and shape[0] * shape[1] <= MAX_ITEMS
    right = np.where(wanted[..., None], values, np.float32(0)) if is_small else None
    return {"items": values, "wanted": wanted}, right


async def items(target: Target, random: Random) -> None:
    """Sends items: none, the most, too many, without bytes, not finite; all, some or none run."""
    shape_only = random.random() < 0.2  # a shape of any size with no bytes of its own
    arrays, right = ({}, None) if shape_only else _items(random)
    if shape_only:
        head = _request("each", {"items": np.zeros((1, 0, 1), np.float32)})
        request = head.replace(b"[1, 0, 1]", b"[9, %d, 0]" % 2 ** random.randrange(8, 63))
        text = request.partition(b"\r\n\r\n")[2]
        await target.post(
            "/v2/models/each/infer", text, f"inference-header-content-length: {len(text)}"
        )
        return
    async with target.connection(target.http_port) as peer:
        await peer.send(_request("each", arrays))
        status, body = await peer.answer()
        target.count(status)
        if status == "200" and right is not None:
            found = json.loads(body)["outputs"][0]["data"]
            given = np.array([0 if one is None else one for one in found], np.float32)
            if len(given) != right.size or not np.array_equal(
                given[np.isfinite(right.ravel())], right.ravel()[np.isfinite(right.ravel())]
            ):
                target.wrong(f"items of shape {list(right.shape)} were answered with {body[:80]!r}")


async def leavers(target: Target, random: Random) -> None:
    """Sends many requests of many items; most callers leave in the middle, some wait."""
    x = np.ones((8, 4), np.float32)
    whole = {"items": np.ones((8, 128, 1), np.float32), "wanted": np.ones((8, 128), np.bool_)}
    asked = {"reader": _request("reader", {"x": x}), "each": _request("each", whole)}
    right = {"reader": 8 * 4, "each": 8 * 128}

    async def call(peer: Peer, model: str, leaves_after_s: float | None) -> None:
        await peer.send(asked[model])
        if leaves_after_s is not None:
            await asyncio.sleep(leaves_after_s)
            peer.writer.transport.abort()
            target.count("left")
            return
        status, body = await peer.answer()
        target.count(status)
        outputs = json.loads(body)["outputs"] if status == "200" else []
        if status == "200" and not any(len(one["data"]) == right[model] for one in outputs):
            target.wrong(f"{model} was answered with {body[:80]!r}")

    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(target.http_port))
            for _ in range(CALLERS)
        ]
        stays = [random.random() < 0.05 for _ in peers]
        await asyncio.gather(
            *(
                call(peer, random.choice(tuple(asked)), None if stay else random.random() / 10)
                for peer, stay in zip(peers, stays, strict=True)
            )
        )


async def short_deadlines(target: Target, random: Random) -> None:
    """Sends many requests whose deadline passes in the middle: each gets one answer in time."""
    x = _request("reader", {"x": np.ones((8, 4), np.float32)})

    async def call(peer: Peer) -> None:
        deadline = b"\r\nhost: x\r\nx-request-timeout-ms: %d\r\n" % random.choice((1, 2, 5, 20))
        await peer.send(x.replace(b"\r\nhost: x\r\n", deadline))
        status, _ = await peer.answer()
        target.count(status)
        if status == "no answer":
            target.wrong("a request of a pipeline was never answered")

    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(target.connection(target.http_port))
            for _ in range(CALLERS // 4)
        ]
        await asyncio.gather(*map(call, peers))


async def hostile_graph(target: Target, random: Random) -> None:
    """Publishes a pipeline with one hostile field, asks it, and removes it."""
    name = f"hostile-{random.randrange(2**32)}"
    path, value = random.choice(FIELDS)
    await asyncio.to_thread(_publish, target.store, name, path, value)
    try:
        for _ in range(10):
            status, _ = await target.post(f"/v2/models/{name}/infer", b"{}")
            if status == "200":
                target.wrong(f"a pipeline with {value!r} at {path} answered {{}}")
            if target.over:
                break
            await asyncio.sleep(0.1)
    finally:
        await asyncio.to_thread(shutil.rmtree, target.store / name)


def _publish(store: Path, name: str, path: tuple[str | int, ...], value: Any) -> None:
    """Copies the pipeline `reader` with another name and one other field; it appears at once."""
    away = store.parent / f"away-{name}"
    shutil.copytree(store / "reader", away)
    file = away / "1/manifest.json"
    manifest = json.loads(file.read_text())
    manifest["model"] = name
    place = manifest["pipeline"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value.replace("hostile", name) if isinstance(value, str) else value
    file.write_text(json.dumps(manifest))
    away.rename(store / name)


ATTACKS = (
    Attack("pipelines: items of any number", items),
    Attack("pipelines: callers who leave", leavers),
    Attack("pipelines: deadlines in the middle", short_deadlines),
    Attack("pipelines: a hostile graph in the store", hostile_graph),
)
