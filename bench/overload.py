"""`make bench-overload`: load beyond the capacity, with a deadline of 50 ms for every request.

An open loop offers requests at random times, independent of responses. The first step finds the
capacity: the goodput (responses in time, a second) at rising loads. The second offers 0.5, 1, 2 and
3 times the capacity, in turn within each round. Prints tables and verdicts and writes
`bench/results/overload.json`.

A request counts by the outcome seen by its client: *refused* (503 or RESOURCE_EXHAUSTED), *in
time*, or *late*: admitted, and answered after 50 ms or not at all.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import uvloop

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, percentile, ratio, table
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
    served_artifact,
)
from bench.peers.peer import Ask, Form
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.pinning import add_cores_option, become_client
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore

DEADLINE_S = 0.05
CAPACITY_CLIENTS = 32
SEARCHED = (0.5, 0.65, 0.8, 0.9, 1.0, 1.15)
"""Loads tried for the capacity, as shares of a closed loop's rate without deadlines."""
OFFERED = (0.5, 1.0, 2.0, 3.0)
"""Multiples of the capacity."""
OVERLOADED = 2.0
SEED = 3
FORMS = {"binary": Form.BINARY, "grpc": Form.GRPC}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """Outcomes of one load, or the medians of several rounds."""

    times_capacity: float
    offered_per_second: float
    offered: float
    admitted: float
    in_time: float
    late: float
    refused: float
    failed: float
    """Neither answered nor refused: always a fault."""
    goodput_per_second: float
    share_of_best: float
    """Goodput divided by the best goodput of the same round."""
    made_it: float
    """Share of the admitted requests that were answered in time."""
    in_time_p99_ms: float
    refused_p50_ms: float
    refused_p99_ms: float
    client_lag_p99_ms: float
    """Lag of the client's own sends."""


def load_figures(shots: Shots, seconds: float, deadline_s: float) -> LoadFigures:
    """Counts the outcomes of a load.

    Args:
        shots: all requests of the load.
        seconds: duration of the load.
        deadline_s: deadline of each request.
    """
    answered, refused = shots.where(Outcome.ANSWERED), shots.where(Outcome.REFUSED)
    expired = shots.where(Outcome.EXPIRED)
    in_time = answered.copy()
    in_time[answered] = shots.durations_ms(answered) <= deadline_s * 1000
    offered, admitted = len(answered), int((answered | expired).sum())
    return LoadFigures(
        times_capacity=0.0,
        offered_per_second=offered / seconds,
        offered=offered,
        admitted=admitted,
        in_time=int(in_time.sum()),
        late=admitted - int(in_time.sum()),
        refused=int(refused.sum()),
        failed=offered - admitted - int(refused.sum()),
        goodput_per_second=int(in_time.sum()) / seconds,
        share_of_best=0.0,
        made_it=ratio(int(in_time.sum()), admitted),
        in_time_p99_ms=percentile(shots.durations_ms(in_time), 99),
        refused_p50_ms=percentile(shots.durations_ms(refused), 50),
        refused_p99_ms=percentile(shots.durations_ms(refused), 99),
        client_lag_p99_ms=percentile(shots.lags_s, 99) * 1000,
    )


def compared_with_best(loads: Sequence[LoadFigures]) -> list[LoadFigures]:
    """Compares the loads of one round with the best goodput of the round."""
    best = max(load.goodput_per_second for load in loads)
    return [replace(load, share_of_best=ratio(load.goodput_per_second, best)) for load in loads]


def medians(rounds: Sequence[Sequence[LoadFigures]]) -> list[LoadFigures]:
    """Returns the medians of each load over the rounds; failures add up."""
    found = []
    for same in zip(*rounds, strict=True):
        records = [asdict(load) for load in same]
        middle = {name: median(record[name] for record in records) for name in records[0]}
        found.append(LoadFigures(**middle | {"failed": sum(r["failed"] for r in records)}))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadFigures:
    """One artifact through one protocol."""

    model: str
    artifact: str
    form: str
    closed_loop_per_second: float
    """Rate of 32 clients without deadlines."""
    capacity_per_second: float
    """Best goodput at rising loads."""
    loads: list[LoadFigures]

    def verdicts(self) -> list[Verdict]:
        """Returns the overload figures beside their targets."""
        name = f"{self.model}, {self.artifact}, {self.form}, {OVERLOADED:g} x capacity"
        load = next(load for load in self.loads if load.times_capacity == OVERLOADED)
        return [
            Verdict(what=f"{name}: admitted requests that make it", unit="%",
                    value=load.made_it * 100, bound="at least", target=99),
            Verdict(what=f"{name}: goodput ÷ the best", value=load.share_of_best,
                    bound="at least", target=0.95),
            Verdict(what=f"{name}: refusal (p99)", unit="ms",
                    value=load.refused_p99_ms, bound="at most", target=5),
            Verdict(what=f"{name}: failed requests", value=load.failed,
                    bound="at most", target=0),
        ]  # fmt: skip


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    manifest = newest_manifest(store, given.model)
    artifacts = given.artifacts or ["onnx", served_artifact(manifest, "")]
    figures = [
        _measure(store, given.model, artifact, FORMS[form], given.rounds, given.seconds)
        for artifact in dict.fromkeys(artifacts)
        for form in given.forms
    ]
    document = {
        "deadline_ms": DEADLINE_S * 1000,
        "seed": SEED,
        "figures": list(map(asdict, figures)),
    }
    write_results("overload", document, [v for figure in figures for v in figure.verdicts()])


def _measure(
    store: ModelStore, name: str, artifact: str, form: Form, rounds: int, seconds: float
) -> OverloadFigures:
    model = golden_model(store, newest_manifest(store, name))
    ask = ask_for(model, form, model.rows[:1], timeout_ms=round(DEADLINE_S * 1000))
    patient = ask_for(model, form, model.rows[:1])
    print(f"{name}, {artifact}, {form}", flush=True)
    with measured_server(store.url, [name], artifact) as server:
        lengths = check_answers(server, model, artifact)
        warm_up(server, form, patient, CAPACITY_CLIENTS, lengths[form])
        closed = closed_loop(server, form, patient, CAPACITY_CLIENTS, 3, lengths[form])
        per_second = closed.answered / closed.duration_s
        print(f"  closed loop, no deadline: {per_second:,.0f} requests/s", flush=True)
        capacity = 0.0
        for share in SEARCHED:
            load = _offer(server, form, ask, share * per_second, seconds / 2, 0)
            capacity = max(capacity, load.goodput_per_second)
            print(f"  offered {load.offered_per_second:,.0f}/s: goodput "
                  f"{load.goodput_per_second:,.0f}/s", flush=True)  # fmt: skip
        found = []
        for number in range(1, rounds + 1):
            loads = [
                replace(
                    _offer(server, form, ask, times * capacity, seconds, number),
                    times_capacity=times,
                )
                for times in OFFERED
            ]
            found.append(compared_with_best(loads))
    figures = OverloadFigures(
        model=name,
        artifact=artifact,
        form=form,
        closed_loop_per_second=per_second,
        capacity_per_second=capacity,
        loads=medians(found),
    )
    print(_table(figures.loads), flush=True)
    return figures


def _offer(
    server: ServerProcess, form: Form, ask: Ask, rate: float, seconds: float, number: int
) -> LoadFigures:
    """Offers one load, from a generator of its own."""

    async def run() -> Shots:
        shots = Shots()
        shooter = open_shooter(form, server.http, server.grpc, [ask], DEADLINE_S)
        try:
            arrivals = poisson_arrivals(rate, seconds, SEED + number)
            await OpenLoop(shooter, arrivals, shots).run()
        finally:
            await shooter.close()
        return shots

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        shots = runner.run(run())
    figures = load_figures(shots, seconds, DEADLINE_S)
    if figures.failed:
        print(f"  failures: {dict(shots.messages)}", flush=True)
    return figures


def _table(loads: Sequence[LoadFigures]) -> str:
    head = ["  x capacity", "offered", "admitted", "in time", "late", "refused", "failed"]
    head += ["goodput/s", "÷ best", "made it %", "in time p99 ms", "refusal p50 ms", "p99 ms"]
    head += ["client late p99 ms"]
    rows = [
        [
            x.times_capacity, x.offered, x.admitted, x.in_time, x.late, x.refused, x.failed,
            x.goodput_per_second, x.share_of_best, x.made_it * 100, x.in_time_p99_ms,
            x.refused_p50_ms, x.refused_p99_ms, x.client_lag_p99_ms,
        ]
        for x in loads
    ]  # fmt: skip
    return table(head, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--artifacts", type=lambda text: text.split(","), metavar="A,B",
                        help="FP32 and the fastest unless given")  # fmt: skip
    parser.add_argument("--forms", type=lambda text: text.split(","), default=list(FORMS),
                        metavar="A,B", help=f"of {', '.join(FORMS)}")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=8, help="of each load of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are taken")
    add_cores_option(parser)
    given = parser.parse_args()
    if wrong := [form for form in given.forms if form not in FORMS]:
        parser.error(f"--forms: {wrong} unknown; known: {', '.join(FORMS)}")
    return given


if __name__ == "__main__":
    main()
