"""Startup cost and event loop lag of a whole server with small figures."""

import asyncio
import compileall
import time
from dataclasses import dataclass
from statistics import median

import uvloop

from bench.figures.verdicts import percentile
from bench.loads.open_loop import OpenLoop, Shots, poisson_arrivals
from bench.loads.rest_shooter import RestShooter
from bench.loads.shooter import Outcome
from bench.measured.golden_model import ask_for, first_answer, golden_model
from bench.peers.peer import Form
from bench.peers.servers.flambeau_peer import ROOT
from bench.served_figures import LAG_BOUND_S
from bench.servers.measured_server import measured_server
from bench.servers.metrics_page import read_metrics
from bench.servers.process_figures import resident_mebibytes
from model_store.manifest import Manifest
from model_store.store import ModelStore

MEGABYTES_A_MEBIBYTE = 2**20 / 1e6
ARRIVALS_SEED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFigures:
    """Medians over a few starts."""

    artifact: str
    cold_start_s: float
    """From the start of the process to the end of the first correct response, over REST."""
    resident_mb: float
    """Megabytes in RAM after that response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFigures:
    """Event loop figures under a steady load of small requests."""

    offered_per_second: float
    answered: int
    failures: int
    within_bound: float
    """Share of event loop samples answered within `LAG_BOUND_S`."""
    looks: int
    p99_ms: float
    client_lag_p99_ms: float
    """Lag of the client's sends; beyond a few tenths, the client was the bottleneck."""


def measure_starts(
    store: ModelStore, manifest: Manifest, artifact: str, times: int
) -> StartFigures:
    """Starts a server a few times and sends one request each time.

    Our sources are compiled first, as an installation does it; not every environment lets a server
    write the bytecode.

    Raises:
        PeerError: a response is wrong or missing.
    """
    model = golden_model(store, manifest)
    seconds, megabytes = [], []
    for package in ("flambeau", "model_store", "protos", "services"):
        compileall.compile_dir(ROOT / package, quiet=2)
    for _ in range(times):
        started = time.perf_counter()
        with measured_server(store.url, [manifest.model], artifact) as server:
            first_answer(server, model, artifact)
            seconds.append(time.perf_counter() - started)
            megabytes.append(resident_mebibytes(server.pid) * MEGABYTES_A_MEBIBYTE)
    return StartFigures(
        artifact=artifact, cold_start_s=median(seconds), resident_mb=median(megabytes)
    )


def measure_lag(
    store: ModelStore, manifest: Manifest, artifact: str, rate: float, seconds: float
) -> LagFigures:
    """Sends JSON at a steady rate and reads the server's event loop histogram."""
    model = golden_model(store, manifest)
    ask = ask_for(model, Form.JSON, model.rows[:1])
    with measured_server(store.url, [manifest.model], artifact) as server:

        async def load(duration: float) -> Shots:
            shooter, shots = RestShooter(server.http, [ask]), Shots()
            arrivals = poisson_arrivals(rate, duration, ARRIVALS_SEED)
            await OpenLoop(shooter, arrivals, shots).run()
            await shooter.close()
            return shots

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(load(1.0))
            before = read_metrics(server.metrics)
            shots = runner.run(load(seconds))
            grown = read_metrics(server.metrics).since(before)
    answered = shots.where(Outcome.ANSWERED)
    return LagFigures(
        offered_per_second=rate,
        answered=int(answered.sum()),
        failures=int((~answered).sum()),
        within_bound=grown.lag_share_within(LAG_BOUND_S),
        looks=int(grown.total("flambeau_event_loop_lag_seconds_count")),
        p99_ms=percentile(shots.durations_ms(answered), 99),
        client_lag_p99_ms=percentile(shots.lags_s, 99) * 1000,
    )
