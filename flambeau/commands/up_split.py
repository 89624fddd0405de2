"""`flambeau up-split`: Redis, workers, gateways, a registry, an example load on one machine."""

import contextlib
import fcntl
import itertools
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.serve import with_settings
from flambeau.commands.text.failures import failing_with
from flambeau.commands.up import FirstRecipe, fill_if_empty
from model_store.host.install_advice import needing

if TYPE_CHECKING:
    from flambeau.split_processes import RedisProcess, SplitProcess

EXTRAS = "split,train"
FOLDER = Path("var/split")
"""Folder of Redis' files and all logs."""
FIRST_PORTS = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}
"""Ports of the first gateway, unless settings differ."""
OWNERS = {"gateway": "gateway", "inference": "worker", "registry_server": "registry"}
"""Names of the processes of each kind, in messages and of logs."""
PORTS_EACH = 10
"""Port offset of each further gateway and worker."""
METRICS_OF_WORKERS = 3
"""Offset of the first worker's metrics port from the first gateway's."""
PORTS_OF_REGISTRY = 7
"""Offset of the registry's ports from the first gateway's."""
REPORT_EVERY_S = 5.0
AFTER_FAILURE_S = 0.1


def up_split(
    store: StoreUrl = DEFAULT_STORE,
    recipe: FirstRecipe = None,
    gateways: Annotated[int, typer.Option(min=1, max=50, help="Number of gateways.")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=50, help="Number of workers.")] = 2,
    load: Annotated[bool, typer.Option(help="Send an example load.")] = True,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of gateways, workers or the registry; may be repeated. Ports are those "
            "of the first gateway, the next one's are 10 higher; 0 picks free ones.",
        ),
    ] = None,
) -> None:
    """Train a first model if the store is empty, then serve it with many processes."""
    from flambeau.errors import ClientError
    from flambeau.split_processes import SplitProcessError, redis_process, redis_program
    from services.settings import ConfigError

    with needing(EXTRAS):
        from services.ports import PortError, check_free

    failures = {ConfigError: 2, PortError: 1, SplitProcessError: 1, ClientError: 1}
    with failing_with(failures), needing(EXTRAS), contextlib.ExitStack() as stack:
        # Configuration errors are found before a training, which takes longer.
        plan = plan_processes(gateways, workers, with_settings({"store": store}, set_))
        FOLDER.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_alone_in(FOLDER))
        check_free(plan["gateway"][0].get("host", "127.0.0.1"), dict(_ports(plan)))
        redis_program()
        fill_if_empty(store, recipe)
        asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: asked.set())
        redis = stack.enter_context(redis_process(FOLDER))
        _stop_with(redis, asked)
        typer.echo(f"queue      {redis.url}")
        started = partial(_started, plan, redis, asked, stack)
        for n, worker in enumerate(started("inference")):
            typer.echo(f"worker {n}   metrics http://{worker.metrics}/metrics")
        grpcs = []
        for n, gateway in enumerate(started("gateway")):
            grpcs.append(gateway.grpc)
            typer.echo(f"gateway {n}  REST http://{gateway.http}/v2  gRPC {gateway.grpc}  "
                       f"metrics http://{gateway.metrics}/metrics")  # fmt: skip
        for registry in started("registry_server"):
            typer.echo(f"registry   REST http://{registry.http}/v1/registry  gRPC {registry.grpc}  "
                       f"metrics http://{registry.metrics}/metrics")  # fmt: skip
        if not asked.is_set():
            typer.echo(f"logs       {FOLDER}/*.log\nCtrl-C stops everything")
            chosen = any(one.get("model_control") == "explicit" for one in plan["inference"])
            if load and chosen:
                typer.echo("load       none: callers load the models (model_control=explicit)")
            elif load:
                _send_load(_any_model(store), grpcs, asked)
            asked.wait()
        redis.check()
        typer.echo("stopping: gateways answer accepted requests, then the workers stop, then Redis")


def _started(
    plan: Mapping[str, Sequence[Mapping[str, Any]]],
    redis: "RedisProcess",
    asked: threading.Event,
    stack: contextlib.ExitStack,
    kind: str,
) -> "Iterator[SplitProcess]":
    """Starts the processes of one kind, one by one, unless asked to stop."""
    from flambeau.split_processes import split_process

    for n, settings in enumerate(plan[kind]):
        if asked.is_set():
            return
        log = FOLDER / f"{OWNERS[kind]}-{n}.log"
        process = split_process(kind, redis.url, log, settings, check_queue=redis.check)
        yield stack.enter_context(process)


def _stop_with(redis: "RedisProcess", asked: threading.Event) -> None:
    """Stops everything when Redis exits; the exit of another process stops no other."""

    def look(*_: object) -> None:
        if redis.has_ended():
            asked.set()

    signal.signal(signal.SIGCHLD, look)


def plan_processes(
    gateways: int, workers: int, given: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Assigns each setting to the processes that have it. Returns the settings of every process.

    Args:
        gateways: number of gateways.
        workers: number of workers.
        given: settings by name.

    Raises:
        ConfigError: a setting is unknown, has an invalid value, or is reserved; or two ports are
            equal.
    """
    from services.gateway.config import GatewayConfig
    from services.inference.config import InferenceConfig
    from services.registry_server.config import RegistryConfig
    from services.settings import ConfigError, ServiceSettings, checked, shared_port

    if "queue" in given:
        raise ConfigError("'queue' cannot be set: up-split starts its own Redis")
    kinds: tuple[tuple[str, type[ServiceSettings], int, int], ...] = (
        ("gateway", GatewayConfig, gateways, 0),
        ("inference", InferenceConfig, workers, METRICS_OF_WORKERS),
        ("registry_server", RegistryConfig, 1, PORTS_OF_REGISTRY),
    )
    known = {setting for _, kind, _, _ in kinds for setting in kind.model_fields}
    unknown = {name: value for name, value in given.items() if name not in known}
    plan: dict[str, list[dict[str, Any]]] = {}
    for name, kind, count, higher in kinds:
        own = {setting: value for setting, value in given.items() if setting in kind.model_fields}
        needed = {"queue": "redis://"}
        checked(kind, needed | own | unknown)
        first = {port: own.get(port, FIRST_PORTS[port]) for port in FIRST_PORTS}
        plan[name] = []
        for n in range(count):
            ports = {
                port: number and number + higher + PORTS_EACH * n
                for port, number in first.items()
                if port in kind.model_fields
            }
            checked(kind, needed | own | ports)
            plan[name].append(own | ports)
    if shared := shared_port(_ports(plan)):
        raise ConfigError(
            f"{shared}, by other values of http_port, grpc_port and metrics_port, which are those "
            f"of gateway 0: each further gateway or worker has ports {PORTS_EACH} higher, worker 0 "
            f"has metrics_port {METRICS_OF_WORKERS} higher, and the registry all "
            f"{PORTS_OF_REGISTRY}"
        )
    return plan


def _ports(plan: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[tuple[str, int]]:
    """Yields every port of a plan, with its setting and its owner."""
    for kind, owner in OWNERS.items():
        for n, settings in enumerate(plan[kind]):
            for name in FIRST_PORTS:
                if name in settings:
                    yield f"{name} of {owner} {n}", settings[name]


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Locks the folder: a second instance would take over the socket and the files."""
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
    """Sends requests to the gateways in turn, one at a time, until stopped."""
    import numpy as np

    from flambeau.client import Client
    from flambeau.errors import ClientError
    from flambeau.protocol.tensors import DATATYPES

    with contextlib.ExitStack() as stack:
        models = [stack.enter_context(Client(grpc)).model(model) for grpc in grpcs]
        inputs = {
            spec.name: np.zeros([max(size, 1) for size in spec.shape], DATATYPES[spec.datatype])
            for spec in models[0].signature.inputs
            if not spec.optional
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
