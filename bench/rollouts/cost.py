"""`make bench-rollout`: the cost of shadows and rollouts to callers, in turns within one run.

A server serves one model, whose version 2 is a copy of version 1, in three ways: without traffic
rules, with a shadow of a tenth of the requests, and with a rollout of a tenth that mirrors a tenth
of the others. In each round each way gets an open loop at half of the capacity, and then as many
requests as the server answers. Each figure is divided by that of the same round without traffic
rules. Prints the medians over the rounds with their spread, and writes
`bench/results/rollout-cost.json`.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import uvloop

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, at_least, at_most, percentile, ratio, table
from bench.loads.capacity import Stream, find_capacity
from bench.loads.closed_loop import closed_loop, warm_up
from bench.loads.open_loop import OpenLoop, Shots, poisson_arrivals
from bench.loads.shooter import Outcome
from bench.loads.shooters import open_shooter
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
)
from bench.measured.version_copy import copy_changed
from bench.peers.peer import Ask, Form
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.metrics_page import read_metrics
from bench.servers.pinning import add_cores_option, become_client
from flambeau.server_process import ServerProcess
from model_store.pointers import Pointers
from model_store.rollouts.traffic import Rollout, Shadow, Traffic
from model_store.store import ModelStore

SHARE = 0.1
WAYS: dict[str, Callable[[], Traffic]] = {
    "none": Traffic,
    "shadow": lambda: Traffic(shadow=Shadow(candidate=2, sample=SHARE)),
    "rollout": lambda: Traffic(
        rollout=Rollout(candidate=2, baseline=1, steps=(SHARE,), mirrored=SHARE)
    ),
}
FORMS = {"json": Form.JSON, "binary": Form.BINARY, "grpc": Form.GRPC}
CLIENTS = 32
LOAD = 0.5
SEARCHED = (0.4, 0.55, 0.7, 0.85)
"""Loads tried for the capacity, as parts of a closed loop's rate."""
OPEN_S = 8.0
CLOSED_S = 3
FOLLOWED_S = 1.0
"""The server follows the pointers, which it reads every 0.1 s."""
SEED = 29
MOST_P99 = 1.05
LEAST_ANSWERED = 1.0
LEAST_PAIRS = 50
"""A second: 300 pairs, which show 5 % of disagreement where 1 % is allowed, take 6 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One way in one round."""

    way: str
    p50_ms: float
    p99_ms: float
    answered: float
    """Share of the requests of the open loop."""
    saturated_per_second: float
    mirrored: float
    """Pairs that were compared during the open loop, as a share of its requests."""
    pairs_per_second: float
    dropped: float
    client_lag_p99_ms: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.most:.3g})"


def spread(values: Sequence[float]) -> Spread:
    """Returns the median and the range of a figure."""
    return Spread(median(values), min(values), max(values))


def ratios(rounds: Sequence[Sequence[Figures]], way: str, figure: str) -> Spread:
    """Returns a figure of one way, divided by that without traffic rules in the same round."""
    found = []
    for one in rounds:
        by_way = {figures.way: asdict(figures)[figure] for figures in one}
        found.append(ratio(by_way[way], by_way["none"]))
    return spread(found)


def verdicts(rounds: Sequence[Sequence[Figures]]) -> list[Verdict]:
    """Returns the figures beside their targets."""
    name = f"shadow of {SHARE:.0%} at {LOAD:.0%} of the capacity"
    p99 = ratios(rounds, "shadow", "p99_ms")
    answered = ratios(rounds, "shadow", "answered")
    pairs = [one.pairs_per_second for each in rounds for one in each if one.way == "shadow"]
    return [
        at_most(f"{name}: p99 ÷ without, median of {len(rounds)}", p99.median, MOST_P99),
        at_least(f"{name}: answered ÷ without", answered.median, LEAST_ANSWERED),
        at_least(f"{name}: pairs compared a second", median(pairs), LEAST_PAIRS),
    ]


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    form = FORMS[given.form]
    with tempfile.TemporaryDirectory(prefix="bench-rollout-") as folder:
        own = ModelStore(folder)
        manifest = copy_changed(store, newest_manifest(store, given.model), own)
        copy_changed(own, manifest, own)
        own.promote(given.model, 1, why="the baseline")
        rounds = _measure(own, given.model, form, given.rounds)
    print(_table(rounds), flush=True)
    document = {
        "load": LOAD,
        "share": SHARE,
        "seed": SEED,
        "model": given.model,
        "form": given.form,
        "rounds": [list(map(asdict, one)) for one in rounds],
    }
    write_results("rollout-cost", document, verdicts(rounds))


def _measure(store: ModelStore, name: str, form: Form, count: int) -> list[list[Figures]]:
    model = golden_model(store, newest_manifest(store, name))
    ask = ask_for(model, form, model.rows[:1])
    with measured_server(store.url, [name], "", "store_poll_interval_s=0.1") as server:
        answer_bytes = check_answers(server, model, "")[form]
        warm_up(server, form, ask, CLIENTS, answer_bytes)
        load = closed_loop(server, form, ask, CLIENTS, CLOSED_S, answer_bytes)
        closed = load.answered / load.duration_s
        print(f"{name}, {form}: {CLIENTS} clients get {closed:,.0f} requests/s", flush=True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            stream = Stream(form, ask, closed)
            rate = LOAD * closed * runner.run(find_capacity(server, [stream], SEARCHED))
        print(f"{name}, {form}: {rate:,.0f} requests/s are half of the capacity", flush=True)
        rounds = []
        for number in range(count):
            # Another way is the first in each round, so that no place in a round favours one.
            ways = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
            one = [
                _one_way(store, server, name, way, form, ask, rate, answer_bytes) for way in ways
            ]
            rounds.append(one)
            said = ", ".join(f"{f.way} {f.p99_ms:.2f} ms" for f in one)
            print(f"  round {number + 1} of {count}: p99 {said}", flush=True)
    return rounds


def _one_way(
    store: ModelStore,
    server: ServerProcess,
    name: str,
    way: str,
    form: Form,
    ask: Ask,
    rate: float,
    answer_bytes: int,
) -> Figures:
    before = store.pointers(name)
    assert before is not None
    why = "a benchmark's traffic"
    store.point(name, Pointers.after(before, before.aliases, "bench", why, WAYS[way]()))
    time.sleep(FOLLOWED_S)
    seen = read_metrics(server.metrics)
    shots = Shots()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_open_loop(server, form, ask, rate, shots))
    grown = read_metrics(server.metrics).since(seen)
    load = closed_loop(server, form, ask, CLIENTS, CLOSED_S, answer_bytes)
    answered = shots.where(Outcome.ANSWERED)
    took_ms, sent = shots.durations_ms(answered), len(answered)
    return Figures(
        way=way,
        p50_ms=percentile(took_ms, 50),
        p99_ms=percentile(took_ms, 99),
        answered=ratio(int(answered.sum()), sent),
        saturated_per_second=load.answered / load.duration_s,
        mirrored=ratio(grown.total("flambeau_mirrored_pairs_total"), sent),
        pairs_per_second=grown.total("flambeau_mirrored_pairs_total") / OPEN_S,
        dropped=ratio(grown.total("flambeau_dropped_mirrors_total"), sent),
        client_lag_p99_ms=percentile(shots.lags_s, 99) * 1000,
    )


async def _open_loop(
    server: ServerProcess, form: Form, ask: Ask, rate: float, shots: Shots
) -> None:
    shooter = open_shooter(form, server.http, server.grpc, [ask])
    try:
        await OpenLoop(shooter, poisson_arrivals(rate, OPEN_S, SEED), shots).run()
    finally:
        await shooter.close()


def _table(rounds: Sequence[Sequence[Figures]]) -> str:
    head = ["  traffic", "p50 ms", "p99 ms", "requests/s at saturation", "p50 ÷", "p99 ÷"]
    head += ["saturation ÷", "compared", "dropped"]
    rows: list[list[str | float]] = []
    for way in WAYS:
        own = [asdict(one) for each in rounds for one in each if one.way == way]
        figures = ("p50_ms", "p99_ms", "saturated_per_second")
        rows.append(
            [
                f"  {way}",
                *(str(spread([one[figure] for one in own])) for figure in figures),
                *(str(ratios(rounds, way, figure)) for figure in figures),
                *(
                    f"{median(one[figure] for one in own):.1%}"
                    for figure in ("mirrored", "dropped")
                ),
            ]
        )
    return table(head, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rollouts.cost", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--model", default="tiny-mlp")
    parser.add_argument("--form", choices=list(FORMS), default="json")
    parser.add_argument("--rounds", type=int, default=5)
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
