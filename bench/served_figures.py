"""One model, one artifact: the raw limit and the served model, in turn within each round.

The machine's speed drifts, so the raw model is measured before and after each served figure, which
is divided by the mean of the two. A process's memory layout makes it one or two hundredths faster
or slower for its whole life, so both are started several times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import mean, median

from bench.loads.closed_loop import PYTHON, closed_loop, generator_of, steady_load, warm_up
from bench.measured.golden_model import ask_for, check_answers, golden_model
from bench.measured.raw_model import raw_model, raw_rates
from bench.peers.peer import Form
from bench.peers.process_tree import cpu_seconds
from bench.peers.served_model import ServedModel
from bench.servers.measured_server import measured_server
from bench.servers.metrics_page import read_metrics
from flambeau.server_process import ServerProcess
from model_store.manifest import Manifest
from model_store.store import ModelStore

LAG_BOUND_S = 0.001
"""Longest block of the event loop by our code; a bucket of the server's histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFigure:
    """Figures of one load, or the medians of several rounds of it."""

    form: str
    clients: int
    generator: str
    requests_per_second: float
    ratio_to_raw: float
    """Served samples divided by those of the raw model at its best batch size."""
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    """User and system time of the server's processes for each answered request."""
    batch_rows: float
    """Mean rows of a batch."""
    lag_within_bound: float
    """Share of event loop samples answered within `LAG_BOUND_S`."""
    failures: int
    """Sum over all rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """All figures of one artifact."""

    model: str
    artifact: str
    raw_samples_per_second: dict[int, float]
    """Rates by batch size, measured once at the beginning."""
    served: list[ServedFigure]

    def of(self, form: Form, clients: int) -> ServedFigure | None:
        """Returns the figure of one load."""
        return next((f for f in self.served if (f.form, f.clients) == (form, clients)), None)


def measure_model(
    store: ModelStore,
    manifest: Manifest,
    artifact: str,
    cases: Sequence[tuple[Form, int]],
    starts: int,
    rounds: int,
    seconds: int,
    in_batches: bool,
) -> ModelFigures:
    """Measures one artifact of one version.

    Args:
        store: model store of the version.
        manifest: manifest of the version, which must be the live one.
        artifact: name of the artifact.
        cases: forms and numbers of clients.
        starts: number of starts of the server and of the raw model.
        rounds: rounds of each start; medians are taken over all.
        seconds: duration of the load for each figure of a round.
        in_batches: True if batches take so long that the end of a load distorts its rate.

    Raises:
        PeerError: a response is wrong or missing.
    """
    raw_s = min(1.0, seconds / 2)
    raw = raw_rates(store, manifest, artifact, raw_s)
    best = max(raw, key=lambda size: raw[size])
    print(f"{manifest.model}, {artifact}: raw, samples/s by batch size: {_rates(raw)}", flush=True)
    figures: dict[tuple[Form, int], list[ServedFigure]] = {case: [] for case in cases}
    model = golden_model(store, manifest)
    for _ in range(starts):
        with (
            measured_server(store.url, [manifest.model], artifact) as server,
            raw_model(store, manifest, artifact) as raw_rate,
        ):
            lengths = check_answers(server, model, artifact)
            limit = raw_rate(best, raw_s)
            for case in [*cases] * rounds:
                served = _measure(server, model, *case, seconds, lengths, in_batches)
                before, limit = limit, raw_rate(best, raw_s)
                ratio = served.requests_per_second / mean((before, limit))
                figures[case].append(replace(served, ratio_to_raw=ratio))
                print(f"  {figure_line(figures[case][-1])}", flush=True)
            check_answers(server, model, artifact)
    return ModelFigures(
        model=manifest.model,
        artifact=artifact,
        raw_samples_per_second=raw,
        served=[medians(group) for group in figures.values()],
    )


def medians(figures: Sequence[ServedFigure]) -> ServedFigure:
    """Returns the medians of one load's rounds; failures add up."""
    numbers = [f.name for f in fields(ServedFigure) if f.type in (float, "float")]
    middle = {name: median(getattr(figure, name) for figure in figures) for name in numbers}
    return replace(figures[0], failures=sum(f.failures for f in figures), **middle)


def figure_line(figure: ServedFigure) -> str:
    """Formats one line of output."""
    return (
        f"{figure.form}, {figure.clients:>2} clients: {figure.requests_per_second:>8,.0f} "
        f"requests/s ({figure.ratio_to_raw:.3f} of raw), p50 {figure.p50_ms:.2f} ms, p99 "
        f"{figure.p99_ms:.2f} ms, {figure.server_cpu_us:,.0f} µs CPU, {figure.batch_rows:.1f} rows "
        f"a batch, failures {figure.failures}"
    )


def _measure(
    server: ServerProcess,
    model: ServedModel,
    form: Form,
    clients: int,
    seconds: int,
    lengths: dict[Form, int],
    in_batches: bool,
) -> ServedFigure:
    """Warms up, then loads; CPU and metrics count only the second part."""
    ask = ask_for(model, form, model.rows[:1])
    if not in_batches:  # otherwise the rate leaves out the first batches
        warm_up(server, form, ask, clients, lengths[form])
    before, cpu = read_metrics(server.metrics), cpu_seconds(server.pid)
    if in_batches:
        load, rate = steady_load(server, form, ask, clients, seconds)
    else:
        load = closed_loop(server, form, ask, clients, seconds, lengths[form])
        rate = load.answered / load.duration_s
    cpu = cpu_seconds(server.pid) - cpu
    grown = read_metrics(server.metrics).since(before)
    return ServedFigure(
        form=form,
        clients=clients,
        generator=PYTHON if in_batches else generator_of(form),
        requests_per_second=rate,
        ratio_to_raw=0.0,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        server_cpu_us=cpu / load.answered * 1e6,
        batch_rows=grown.mean_batch_rows(model.name),
        lag_within_bound=grown.lag_share_within(LAG_BOUND_S),
        failures=load.failed,
    )


def _rates(rates: dict[int, float]) -> str:
    return ", ".join(f"{rows}: {rate:,.0f}" for rows, rate in rates.items())
