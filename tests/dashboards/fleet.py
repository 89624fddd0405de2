"""The watched fleet: Redis, gateway, worker, training service, callers, Prometheus, traces.

Callers are steady enough for a test of seconds, and lively enough for a picture of a minute: their
number goes up and down, half of them ask for the old version, a few ask for what fails.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.e2e.grpc_calls import linear_request
from tests.e2e.rest_calls import infer, linear_input, lookup_inputs, post
from tests.fixtures.onnx_models import linear, publish, slow_lookup
from tests.fixtures.otlp_collector import Collector, running_collector
from tests.fixtures.prometheus_process import PrometheusProcess, running_prometheus
from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import SplitServer, running_split
from tests.fixtures.stateful_models import publish_running_sum
from tests.fixtures.trainer_processes import TrainerProcess, running_trainer
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW = (1.0, 2.0, 3.0, 4.0)
OUT_OF_TABLE = 10
"""An index that makes the model fail."""
CALLERS = 4
PERIOD_S = 25.0
PAUSE_S = 0.01
RULES = Path(__file__).parents[2] / "deploy/prometheus/rules/flambeau.yaml"


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of it."""

    server: SplitServer
    trainer: TrainerProcess
    prometheus: PrometheusProcess
    collector: Collector
    """Collector of traces; it keeps those that their callers sampled."""


@contextmanager
def running_fleet(folder: Path, interval_ms: int = 500) -> Iterator[Fleet]:
    """Runs it until the block ends.

    Args:
        folder: its own.
        interval_ms: between two looks of Prometheus.
    """
    store = folder / "store"
    publish(str(store), "linear", linear(1.0, layers=4))
    publish(str(store), "linear", linear(2.0))
    publish(str(store), "lookup", slow_lookup())
    publish_running_sum(str(store))
    with ExitStack() as stack:
        (folder / "training").mkdir()
        jobs = f"--jobs={folder / 'training/jobs.db'}"
        trainer = stack.enter_context(running_trainer(folder / "training", jobs))
        collector = stack.enter_context(running_collector())
        traces: dict[str, Any] = {"trace_endpoint": collector.endpoint, "trace_ratio": 0.0}
        server = stack.enter_context(running_split(store, newest_versions=2, **traces))
        assert server.worker is not None
        targets = {
            "flambeau-gateway": f"127.0.0.1:{server.metrics_port}",
            "flambeau-worker": f"127.0.0.1:{server.worker.metrics_port}",
            "flambeau-trainer": trainer.metrics_address,
        }
        prometheus = stack.enter_context(
            running_prometheus(folder / "prometheus", targets, RULES, interval_ms=interval_ms)
        )
        yield Fleet(server, trainer, prometheus, collector)


@contextmanager
def load(server: ServerProcess) -> Iterator[None]:
    """Callers until the block ends; what they are answered is theirs."""
    over = threading.Event()
    work = [
        threading.Thread(target=_call_rest, args=(server, number, over))
        for number in range(CALLERS)
    ]
    work.append(threading.Thread(target=_call_grpc, args=(server, over)))
    work.append(threading.Thread(target=_call_seldom, args=(server, over)))
    for thread in work:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in work:
            thread.join()


def _call_rest(server: ServerProcess, number: int, over: threading.Event) -> None:
    """Asks for a version; the higher its number the more of the time it rests."""
    while not over.wait(PAUSE_S):
        wave = (1 + math.sin(2 * math.pi * time.monotonic() / PERIOD_S)) / 2
        if wave >= number / CALLERS:
            infer(server, "linear", linear_input(ROW), version=str(1 + number % 2))


def _call_grpc(server: ServerProcess, over: threading.Event) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        while not over.wait(2 * PAUSE_S):
            with contextlib.suppress(grpc.RpcError):  # a machine that stalls loses its worker
                stub.ModelInfer(linear_request(ROW, ROW, ROW))


def _call_seldom(server: ServerProcess, over: threading.Event) -> None:
    """Jobs, and requests that take long or fail."""
    job = {"inputs": [linear_input(ROW)]}
    turn = 0
    while not over.wait(0.1):
        turn += 1
        infer(server, "lookup", *lookup_inputs(OUT_OF_TABLE if turn % 20 == 0 else 3, work=500))
        post(server, "/v2/models/linear/jobs", job)
