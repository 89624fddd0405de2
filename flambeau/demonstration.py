"""Measures a served digits model over REST and gRPC, for `flambeau demo`.

It sends every held-out test image, one by one from 32 concurrent clients, over REST and over gRPC,
and fails unless both reach exactly the accuracy that training reported for the served artifact, in
batches of more than one.
"""

import asyncio
import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import numpy as np
import typer

from flambeau.server_process import ServerProcess

if TYPE_CHECKING:
    from flambeau.protocol.tensors import Array
    from model_store.manifest import Manifest
    from model_store.store import ModelStore
    from training.recipe.recipe import Recipe

CLIENTS = 32
MIN_ACCURACY = 0.97
SHOWN = 10
MODEL = "digits"


class DemoError(Exception):
    """A result differs from the expected one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one protocol on the test images."""

    predicted: "Array"
    seconds: float
    batches: dict[float, int]
    """Number of batches by upper bound of their rows."""
    mean_batch: float


def compare_protocols(store: str, server: ServerProcess) -> str:
    """Sends the same images over both protocols; returns the last line to print.

    Raises:
        DemoError: an accuracy or the batch sizes differ from the expected ones.
    """
    manifest, artifact = _served(store, server)
    images, labels = _test_images(store, manifest)
    rest = _measure(server, lambda: _classify_rest(server, images))
    grpc = _measure(server, lambda: asyncio.run(_classify_grpc(server, images)))
    _show(rest, grpc, labels)
    expected = next(a for a in manifest.artifacts if a.name == artifact).verification.metrics[
        "accuracy"
    ]
    rest_accuracy, grpc_accuracy = (float((o.predicted == labels).mean()) for o in (rest, grpc))
    mean_batch = min(rest.mean_batch, grpc.mean_batch)
    for protocol, accuracy in (("rest", rest_accuracy), ("grpc", grpc_accuracy)):
        if abs(accuracy - expected) > 1e-9 or accuracy < MIN_ACCURACY:
            raise DemoError(
                f"{protocol} accuracy is {accuracy:.4f}; training reported {expected:.4f} for "
                f"artifact {artifact}, and at least {MIN_ACCURACY} is promised"
            )
    if mean_batch <= 1:
        raise DemoError(f"the mean batch is {mean_batch:.2f} rows; no batches formed")
    return (
        f"demo ok: model={manifest.model} version={manifest.version} "
        f"rest_accuracy={rest_accuracy:.4f} grpc_accuracy={grpc_accuracy:.4f} "
        f"mean_batch={mean_batch:.2f}"
    )


def _served(store: str, server: ServerProcess) -> tuple["Manifest", str]:
    """Returns the live version's manifest, and the name of the served artifact."""
    from flambeau.client import Client
    from model_store.store import ModelStore

    with Client(server.grpc) as client:
        properties = client.metadata(MODEL).properties
    manifest = ModelStore(store).manifest(MODEL, int(properties["version"]))
    return manifest, properties["artifact"]


def _test_images(store: str, manifest: "Manifest") -> tuple["Array", "Array"]:
    """Loads the held-out split of the version's recipe: images [N, 1, 8, 8], labels [N].

    Raises:
        TrainingError: the data cannot be read; for a missing library, with the install command.
    """
    from model_store.store import ModelStore
    from training.datasets import load_splits

    test = load_splits(_recipe(ModelStore(store), manifest)).test
    return test.inputs["image"], test.labels


def check_packages_of(store: str) -> None:
    """Rejects a store whose test images need a missing library, before serving starts.

    Raises:
        DemoError: the version has no recipe.
        StoreError: the store has no such model, or it cannot be read.
        TrainingError: a library is missing; the message has the install command.
    """
    from model_store.pointers import PRODUCTION
    from model_store.store import ModelStore

    opened = ModelStore(store)
    pointers = opened.pointers(MODEL)
    live = pointers.aliases.get(PRODUCTION) if pointers else None
    _recipe(opened, opened.manifest(MODEL, live or opened.versions(MODEL)[-1]))


def _recipe(store: "ModelStore", manifest: "Manifest") -> "Recipe":
    """Returns the recipe of a version, after checking that its libraries are installed."""
    from training.recipe.file import parse_recipe
    from training.recipe.needed_packages import check_packages

    entry = manifest.file("recipe.resolved.yaml")
    if entry is None:
        raise DemoError(f"model {MODEL} {manifest.version} has no recipe.resolved.yaml")
    recipe = parse_recipe(store.read_text(manifest, entry), entry.file)
    check_packages(recipe)
    return recipe


def _measure(server: ServerProcess, classify: Callable[[], "Array"]) -> Outcome:
    before, rows_before = _batches(server)
    started = time.monotonic()
    predicted = classify()
    seconds = time.monotonic() - started
    after, rows_after = _batches(server)
    batches = {bound: after[bound] - before.get(bound, 0) for bound in after}
    return Outcome(
        predicted, seconds, batches, (rows_after - rows_before) / max(sum(batches.values()), 1)
    )


def _batches(server: ServerProcess) -> tuple[dict[float, int], float]:
    """Returns batch counts by upper bound of rows, and the total rows, since the start."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    samples = [
        sample
        for family in families
        if family.name == "flambeau_batch_size"
        for sample in family.samples
        if sample.labels["model"] == MODEL
    ]
    rows = sum(s.value for s in samples if s.name.endswith("_sum"))
    cumulative: dict[float, float] = {}
    for sample in samples:
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            cumulative[bound] = cumulative.get(bound, 0) + sample.value
    counts = [0.0, *(cumulative[bound] for bound in sorted(cumulative))]
    steps = (int(high - low) for low, high in itertools.pairwise(counts))
    return dict(zip(sorted(cumulative), steps, strict=True)), rows


def _classify_rest(server: ServerProcess, images: "Array") -> "Array":
    """Classifies with one thread and one connection per client, one image per request."""
    clients = threading.local()

    def ask(index: int) -> int:
        if not hasattr(clients, "connection"):
            clients.connection = HTTPConnection(server.http, timeout=30)
        return _ask_rest(clients.connection, images[index : index + 1])

    with ThreadPoolExecutor(CLIENTS) as pool:
        return np.array(list(pool.map(ask, range(len(images)))))


def _ask_rest(connection: HTTPConnection, image: "Array") -> int:
    tensor = {"name": "image", "datatype": "FP32", "shape": image.shape, "data": image.tolist()}
    connection.request("POST", f"/v2/models/{MODEL}/infer", json.dumps({"inputs": [tensor]}))
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise DemoError(f"REST answered {response.status}: {answer.get('error')}")
    return int(np.argmax(answer["outputs"][0]["data"]))


async def _classify_grpc(server: ServerProcess, images: "Array") -> "Array":
    """Classifies with one task per client; all share one connection, as gRPC clients do."""
    from flambeau.client import AsyncClient

    predicted = np.full(len(images), -1)
    indexes = iter(range(len(images)))
    async with AsyncClient(server.grpc) as client:
        model = await client.model(MODEL)

        async def ask() -> None:
            for index in indexes:
                logits = await model(image=images[index : index + 1])
                predicted[index] = int(logits.argmax())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(ask())
    return predicted


def _show(rest: Outcome, grpc: Outcome, labels: "Array") -> None:
    typer.echo("image  true  REST  gRPC")
    for index in range(SHOWN):
        guesses = f"{rest.predicted[index]:>4}  {grpc.predicted[index]:>4}"
        typer.echo(f"{index:>5}  {labels[index]:>4}  {guesses}")
    for name, outcome in (("REST", rest), ("gRPC", grpc)):
        accuracy = float((outcome.predicted == labels).mean())
        sizes = ", ".join(
            f"≤{bound:g} rows: {count}" for bound, count in outcome.batches.items() if count
        )
        typer.echo(
            f"{name}: accuracy {accuracy:.4f} over {len(labels)} images, "
            f"{len(labels) / outcome.seconds:,.0f} requests/s, "
            f"mean batch {outcome.mean_batch:.2f} ({sizes})"
        )
