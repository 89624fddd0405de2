"""`make bench-split`: cost of Redis between gateway and worker, against a single process.

All processes of a server share the server's core: the work of Redis counts as the server's.
The two shapes are measured in turn within each round. Prints verdicts and writes
`bench/results/split.json`.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, table
from bench.loads.closed_loop import closed_loop, warm_up
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
    read_golden,
    served_artifact,
)
from bench.measured.raw_model import raw_rates
from bench.peers.load import Load
from bench.peers.peer import Form
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import end_with_exception, measured_server, server_child
from bench.servers.metrics_page import read_metrics
from bench.servers.pinning import add_cores_option, become_client
from flambeau.server_process import ServerProcess
from flambeau.split_processes import SplitProcess, redis_process, split_process
from model_store.store import ModelStore
from services.queueing.records import JOB_PRIORITY, InferRequest, Lane
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.jobs import JobLimits, Jobs
from services.queueing.redis_streams.keys import LaneKeys

FORM = Form.BINARY
LARGE, SMALL = "cnn", "tiny-mlp"
CLIENTS = 32
GATEWAYS = 16
JOBS, AT_ONCE = 10_000, 100
RAW_S = 1.0
"""Seconds for each batch size, to find the best."""
BEST_RAW_S = 5.0
"""Seconds for the best batch size, before and after."""
LOOK_EVERY_S = 0.05
EDGE_S = 2
"""Seconds until all load generators are at work, and before the first one ends."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split server."""

    redis_pid: int
    queue: str
    worker: SplitProcess
    gateways: Sequence[ServerProcess]

    def cpu_s(self) -> float:
        """Returns the CPU seconds of the worker and the gateways so far."""
        return sum(map(cpu_seconds, [self.worker.pid, *(each.pid for each in self.gateways)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFigures:
    """Figures of one shape under one load, medians of the rounds."""

    model: str
    shape: str
    clients: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    rows_a_batch: float
    cpu_us: float
    """User and system time of all processes of the server for each request."""
    redis_cpu_us: float
    """That of Redis; 0 without it."""
    failures: int


@dataclass(frozen=True, slots=True)
class DrainedJobs:
    """Queued jobs, and the rate at which they were processed."""

    jobs: int
    jobs_per_second: float
    raw_per_second: float

    def verdict(self) -> Verdict:
        """Returns the figure beside its target."""
        return Verdict(what=f"{self.jobs:,} jobs that wait, {LARGE}: jobs/s ÷ raw",
                       value=self.jobs_per_second / self.raw_per_second,
                       bound="at least", target=0.9)  # fmt: skip


@contextlib.contextmanager
def split_server(store: ModelStore, models: Sequence[str], gateways: int = 1) -> Iterator[Split]:
    """Runs Redis, one worker and some gateways on the server's cores, until the block ends."""
    prepare = server_child()
    with tempfile.TemporaryDirectory(prefix="flambeau-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        redis = stack.enter_context(redis_process(folder, prepare))
        only = {
            "store": store.url, "models": models, "metrics_port": 0, "choose_artifact_budget_s": 0,
        }  # fmt: skip
        worker = stack.enter_context(
            split_process("inference", redis.url, folder / "worker.log", only, prepare)
        )
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        found = []
        for n in range(gateways):
            log = folder / f"gateway-{n}.log"
            part = stack.enter_context(split_process("gateway", redis.url, log, ports, prepare))
            found.append(
                ServerProcess(pid=part.pid, http=part.http, grpc=part.grpc, metrics=part.metrics)
            )
        yield Split(redis.process.pid, redis.url, worker, found)


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    figures = [
        _medians(group)
        for name, clients in ((LARGE, CLIENTS), (SMALL, 1), (SMALL, CLIENTS))
        for group in _both_shapes(store, name, clients, given.rounds, given.seconds)
    ]
    rows = _rows_a_batch(store, given.seconds)
    drained = _drained(store)
    print(_table(figures))
    document = {
        "figures": list(map(asdict, figures)),
        "rows_by_gateways": rows,
        "jobs": asdict(drained),
    }
    verdicts = _verdicts(figures, rows)
    write_results("split", document, [*verdicts, drained.verdict()])


def _both_shapes(
    store: ModelStore, name: str, clients: int, rounds: int, seconds: int
) -> list[list[ShapeFigures]]:
    """Loads both shapes in turn. Returns the rounds of each."""
    alone, apart = [], []
    with measured_server(store.url, [name]) as one, split_server(store, [name]) as split:
        for _ in range(rounds):
            alone.append(_measure(store, name, one, None, clients, seconds))
            apart.append(_measure(store, name, split.gateways[0], split, clients, seconds))
    return [alone, apart]


def _measure(
    store: ModelStore,
    name: str,
    server: ServerProcess,
    split: Split | None,
    clients: int,
    seconds: int,
) -> ShapeFigures:
    shape = "all in one" if split is None else "split"
    metrics = server.metrics if split is None else split.worker.metrics
    manifest = newest_manifest(store, name)
    model = golden_model(store, manifest)
    length = check_answers(server, model, served_artifact(manifest, ""))[FORM]
    ask = ask_for(model, FORM, model.rows[:1])
    warm_up(server, FORM, ask, clients, length)

    def cpu_s() -> tuple[float, float]:
        if split is None:
            return cpu_seconds(server.pid), 0.0
        return split.cpu_s(), cpu_seconds(split.redis_pid)

    before, began = read_metrics(metrics), cpu_s()
    load = closed_loop(server, FORM, ask, clients, seconds, length)
    own_us, redis_us = (
        (now - then) / load.answered * 1e6 for now, then in zip(cpu_s(), began, strict=True)
    )
    figures = ShapeFigures(
        model=name,
        shape=shape,
        clients=clients,
        requests_per_second=load.answered / load.duration_s,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        rows_a_batch=read_metrics(metrics).since(before).mean_batch_rows(name),
        cpu_us=own_us + redis_us,
        redis_cpu_us=redis_us,
        failures=load.failed,
    )
    print(f"  {name}, {clients} clients, {shape}: {figures.requests_per_second:,.0f}/s, p50 "
          f"{figures.p50_ms:.2f} ms", flush=True)  # fmt: skip
    return figures


def _rows_a_batch(store: ModelStore, seconds: int) -> dict[int, float]:
    """Returns the mean rows of a batch when the same clients use one gateway, or all of them.

    One worker runs both loads: another one may learn another best size of a batch.
    """
    manifest = newest_manifest(store, LARGE)
    model = golden_model(store, manifest)
    ask = ask_for(model, FORM, model.rows[:1])
    rows = {}
    with split_server(store, [LARGE], GATEWAYS) as split:
        artifact = served_artifact(manifest, "")
        length = check_answers(split.gateways[0], model, artifact)[FORM]
        for count in (1, GATEWAYS):

            def load(gateway: ServerProcess, clients: int = CLIENTS // count) -> Load:
                return closed_loop(gateway, FORM, ask, clients, seconds + 2 * EDGE_S, length)

            with ThreadPoolExecutor(count) as threads:
                loads = threads.map(load, split.gateways[:count])
                time.sleep(EDGE_S)
                before = read_metrics(split.worker.metrics)
                time.sleep(seconds)
                since = read_metrics(split.worker.metrics).since(before)
            rows[count] = since.mean_batch_rows(LARGE)
            failed = sum(load.failed for load in loads)
            print(f"  {count} gateways: {rows[count]:.1f} rows a batch, failures {failed}",
                  flush=True)  # fmt: skip
    return rows


def _drained(store: ModelStore) -> DrainedJobs:
    """Submits jobs faster than they are processed, and measures the time to drain the rest."""
    manifest = newest_manifest(store, LARGE)
    artifact = served_artifact(manifest, "")
    rates = raw_rates(store, manifest, artifact, RAW_S)
    best = max(rates, key=lambda size: rates[size])
    before = raw_rates(store, manifest, artifact, BEST_RAW_S, [best])[best]
    golden = read_golden(store, manifest).inputs
    request = InferRequest(
        request_id="bench",
        lane=Lane(LARGE, manifest.version),
        inputs={name: rows[:1] for name, rows in golden.items()},
        rows=1,
        deadline=0.0,
        priority=JOB_PRIORITY,
    )

    async def run(queue: str) -> tuple[int, float]:
        clients = RedisClients(queue)
        jobs, redis = Jobs(clients, JobLimits(10 * JOBS, 3600)), clients.open()
        stream = LaneKeys(request.lane, jobs=True).streams[0]
        try:
            for _ in range(JOBS // AT_ONCE):
                handed = (jobs.submit(request, 3600) for _ in range(AT_ONCE))
                await asyncio.gather(*handed)
            waiting, began = await redis.send("XLEN", stream), time.monotonic()
            while await redis.send("XLEN", stream):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY_S)
            return waiting, time.monotonic() - began
        finally:
            await redis.close()

    with split_server(store, [LARGE]) as split:
        waiting, took_s = asyncio.run(run(split.queue))
    after = raw_rates(store, manifest, artifact, BEST_RAW_S, [best])[best]
    print(f"  {waiting:,} jobs in {took_s:.0f} s, raw {before:,.0f}/s before, {after:,.0f}/s after",
          flush=True)  # fmt: skip
    return DrainedJobs(JOBS, waiting / took_s, (before + after) / 2)


def _medians(rounds: Sequence[ShapeFigures]) -> ShapeFigures:
    first = asdict(rounds[0])
    numbers = [name for name, value in first.items() if isinstance(value, float)]
    middle = {name: median(getattr(one, name) for one in rounds) for name in numbers}
    return ShapeFigures(**first | middle | {"failures": sum(one.failures for one in rounds)})


def _verdicts(figures: Sequence[ShapeFigures], rows: Mapping[int, float]) -> list[Verdict]:
    of = {(f.model, f.clients, f.shape): f for f in figures}
    large = [of[LARGE, CLIENTS, shape] for shape in ("all in one", "split")]
    one = [of[SMALL, 1, shape] for shape in ("all in one", "split")]
    many = [of[SMALL, CLIENTS, shape] for shape in ("all in one", "split")]
    return [
        Verdict(what=f"{LARGE}, {CLIENTS} clients: split ÷ all in one, requests/s",
                value=large[1].requests_per_second / large[0].requests_per_second,
                bound="at least", target=0.9),
        Verdict(what="one client: added to the median latency", unit="ms",
                value=one[1].p50_ms - one[0].p50_ms, bound="at most", target=0.8),
        Verdict(what=f"{SMALL}, {CLIENTS} clients: split ÷ all in one, CPU of a request",
                value=many[1].cpu_us / many[0].cpu_us, bound="at most", target=2.0),
        Verdict(what=f"{LARGE}, {CLIENTS} clients: rows a batch, {GATEWAYS} gateways ÷ one",
                value=rows[GATEWAYS] / rows[1], bound="at least", target=0.9),
        Verdict(what="failed requests", value=sum(f.failures for f in figures),
                bound="at most", target=0),
    ]  # fmt: skip


def _table(figures: Sequence[ShapeFigures]) -> str:
    head = ["model", "shape", "clients", "requests/s", "p50 ms", "p99 ms", "rows a batch"]
    head += ["CPU µs", "of it Redis"]
    rows: list[list[str | float]] = [
        [
            f.model, f.shape, f.clients, f.requests_per_second, f.p50_ms, f.p99_ms,
            f.rows_a_batch, f.cpu_us, f.redis_cpu_us,
        ]
        for f in figures
    ]  # fmt: skip
    return table(head, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.split", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--seconds", type=int, default=5, help="of each load of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are taken")
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
