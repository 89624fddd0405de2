"""`flambeau up-split`: many processes on one machine. Redis, workers, gateways, an example load."""

import contextlib
import fcntl
import itertools
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from flambeau.commands.failures import failing_with
from flambeau.commands.store_option import DEFAULT_STORE, StoreUrl
from flambeau.commands.up import FirstRecipe, fill_if_empty

FOLDER = Path("var/split")
"""For Redis' files and all logs."""
FIRST_PORT = 8000
PORTS_EACH = 10
"""Gateway n has 8000 + 10 n and the two behind it; worker n has 8005 + 10 n for metrics."""
REPORT_EVERY_S = 5.0
AFTER_FAILURE_S = 0.1


def up_split(
    store: StoreUrl = DEFAULT_STORE,
    recipe: FirstRecipe = None,
    gateways: Annotated[int, typer.Option(min=1, max=50, help="How many.")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=50, help="How many.")] = 2,
    load: Annotated[bool, typer.Option(help="Whether to send an example load.")] = True,
) -> None:
    """Train a first model if the store is empty, then serve it with many processes."""
    from flambeau.errors import ClientError
    from flambeau.split_processes import SplitProcessError, redis_process, split_process

    fill_if_empty(store, recipe)
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.set())
    FOLDER.mkdir(parents=True, exist_ok=True)
    failures = {SplitProcessError: 1, ClientError: 1}
    with failing_with(failures), contextlib.ExitStack() as stack:
        stack.enter_context(_alone_in(FOLDER))
        _, queue = stack.enter_context(redis_process(FOLDER))
        typer.echo(f"queue      {queue}")
        for n in range(workers):
            if asked.is_set():
                return
            settings = {"store": store, "metrics_port": FIRST_PORT + PORTS_EACH * n + 5}
            log = FOLDER / f"worker-{n}.log"
            worker = stack.enter_context(split_process("inference", queue, log, settings))
            typer.echo(f"worker {n}   metrics http://{worker.metrics}/metrics")
        grpcs = []
        for n in range(gateways):
            if asked.is_set():
                return
            port = FIRST_PORT + PORTS_EACH * n
            settings = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
            log = FOLDER / f"gateway-{n}.log"
            gateway = stack.enter_context(split_process("gateway", queue, log, settings))
            grpcs.append(gateway.grpc)
            typer.echo(f"gateway {n}  REST http://{gateway.http}/v2  gRPC {gateway.grpc}  "
                       f"metrics http://{gateway.metrics}/metrics")  # fmt: skip
        typer.echo(f"logs       {FOLDER}/*.log\nCtrl-C stops everything")
        if load:
            _send_load(_any_model(store), grpcs, asked)
        asked.wait()
        typer.echo("stopping: gateways answer what they accepted, then the workers end, then Redis")


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keeps a second one out: it would take the first one's socket and write to its files."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            typer.echo(f"flambeau up-split runs in {folder.absolute()} already", err=True)
            raise typer.Exit(1) from None
        yield


def _any_model(store: str) -> str:
    from model_store.store import ModelStore

    return next(iter(ModelStore(store).models()))


def _send_load(model: str, grpcs: Sequence[str], asked: threading.Event) -> None:
    """Asks the gateways in turn, one request after the other, until asked to stop."""
    import numpy as np

    from flambeau.client import Client
    from flambeau.errors import ClientError
    from model_store.tensors import DATATYPES

    with contextlib.ExitStack() as stack:
        models = [stack.enter_context(Client(grpc)).model(model) for grpc in grpcs]
        inputs = {
            spec.name: np.zeros([max(size, 1) for size in spec.shape], DATATYPES[spec.datatype])
            for spec in models[0].signature.inputs
        }
        answered = failed = 0
        took_ms: list[float] = []
        report_at = time.monotonic() + REPORT_EVERY_S
        for served in itertools.cycle(models):
            if asked.is_set():
                return
            started = time.monotonic()
            try:
                served.infer(inputs)
            except ClientError:
                failed += 1
                asked.wait(AFTER_FAILURE_S)
            else:
                answered += 1
                took_ms.append((time.monotonic() - started) * 1000)
            if time.monotonic() > report_at and took_ms:
                middle_ms = sorted(took_ms)[len(took_ms) // 2]
                typer.echo(f"load       {answered} answered, {failed} failed, {middle_ms:.2f} ms")
                took_ms.clear()
                report_at += REPORT_EVERY_S
