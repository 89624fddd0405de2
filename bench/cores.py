"""`make bench-cores`: several processes that accept requests, compared with one that does all.

Servers with one process and with two edges take turns within each round. Client and servers share
the cores, so the rates tell little. The CPU time of each process for a request says what it could
do on a core of its own: a server has the capacity of its busiest process, which is one edge with
its part of the requests, or the model process with all of them (the law of utilisation, Lazowska
et al., Quantitative System Performance, 1984, ch. 3). Prints verdicts, and what 16 cores would
give; writes `bench/results/cores.json`.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, at_least, at_most, table
from bench.loads.closed_loop import closed_loop, warm_up
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
)
from bench.peers.peer import Form
from bench.peers.process_tree import ticks_s, tree_of
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.pinning import add_cores_option, become_client
from bench.servers.process_figures import EDGE, MODULES
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore

MODEL, ARTIFACT = "tiny-mlp", "onnx"
EDGES = 2
CASES = ((Form.JSON, 64), (Form.GRPC, 64), (Form.JSON, 1), (Form.GRPC, 1))
ONE = "one process"
CORES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresFigures:
    """One load on one shape, or the medians of several rounds."""

    shape: str
    form: str
    clients: int
    requests_per_second: float
    p50_ms: float
    client_cpu_us: float
    cpu_us: Mapping[str, float]
    """Microseconds for each request, by kind of process; of edges together."""
    failures: int

    @property
    def capacity(self) -> float:
        """Requests a second, if each process had a core of its own."""
        return self.capacity_with(EDGES)

    def capacity_with(self, edges: int) -> float:
        """Requests a second with another number of edges, each on a core of its own."""
        busiest = max(us / (edges if kind == EDGE else 1) for kind, us in self.cpu_us.items())
        return 1e6 / busiest


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    figures = _both_shapes(store, given.rounds, given.seconds)
    print(_table(figures))
    many = next(f for f in figures if f.shape == EDGE)
    edges = {n: many.capacity_with(n) for n in (1, 2, 4, 8, CORES - 2)}
    for count, rate in edges.items():
        print(f"{count:>2} edges and a model process, a core each: {rate:>9,.0f} requests/s")
    document = {"figures": list(map(asdict, figures)), "capacity_by_edges": edges}
    write_results("cores", document, _verdicts(figures))


def _both_shapes(store: ModelStore, rounds: int, seconds: int) -> list[CoresFigures]:
    found: dict[tuple[str, Form, int], list[CoresFigures]] = defaultdict(list)
    with (
        measured_server(store.url, [MODEL], ARTIFACT) as one,
        measured_server(store.url, [MODEL], ARTIFACT, f"processes={EDGES}") as many,
    ):
        for _ in range(rounds):
            for form, clients in CASES:
                for shape, server in ((ONE, one), (EDGE, many)):
                    figure = _measure(store, server, shape, form, clients, seconds)
                    found[shape, form, clients].append(figure)
                    print(f"  {_line(figure)}", flush=True)
    return [_medians(group) for group in found.values()]


def _measure(
    store: ModelStore, server: ServerProcess, shape: str, form: Form, clients: int, seconds: int
) -> CoresFigures:
    model = golden_model(store, newest_manifest(store, MODEL))
    lengths = check_answers(server, model, ARTIFACT)
    ask = ask_for(model, form, model.rows[:1])
    warm_up(server, form, ask, clients, lengths[form])
    before = _cpu_by_kind(server.pid)
    load = closed_loop(server, form, ask, clients, seconds, lengths[form])
    after = _cpu_by_kind(server.pid)
    return CoresFigures(
        shape=shape,
        form=form,
        clients=clients,
        requests_per_second=load.answered / load.duration_s,
        p50_ms=load.p50_ms,
        client_cpu_us=load.client_cpu_s / load.answered * 1e6,
        cpu_us={kind: (after[kind] - before[kind]) / load.answered * 1e6 for kind in after},
        failures=load.failed,
    )


def _cpu_by_kind(root: int) -> dict[str, float]:
    """Returns seconds of CPU time by kind of process; the supervisor is none of them."""
    found: dict[str, float] = defaultdict(float)
    for state in tree_of(root):
        words = Path(f"/proc/{state.pid}/cmdline").read_text().split("\0")
        kinds = [kind for module, kind in MODULES.items() if module in words]
        for kind in kinds:
            found[kind] += ticks_s(state)
    return dict(found) or {ONE: sum(map(ticks_s, tree_of(root)))}


def _medians(group: Sequence[CoresFigures]) -> CoresFigures:
    first = group[0]
    return CoresFigures(
        shape=first.shape,
        form=first.form,
        clients=first.clients,
        requests_per_second=median(f.requests_per_second for f in group),
        p50_ms=median(f.p50_ms for f in group),
        client_cpu_us=median(f.client_cpu_us for f in group),
        cpu_us={kind: median(f.cpu_us[kind] for f in group) for kind in first.cpu_us},
        failures=sum(f.failures for f in group),
    )


def _line(figure: CoresFigures) -> str:
    cpu = ", ".join(f"{kind} {us:.0f}" for kind, us in figure.cpu_us.items())
    return (
        f"{figure.shape:12} {figure.form}, {figure.clients:>2} clients: "
        f"{figure.requests_per_second:>8,.0f} requests/s, p50 {figure.p50_ms:.2f} ms, "
        f"µs of CPU a request: {cpu}, client {figure.client_cpu_us:.0f}"
    )


def _table(figures: Sequence[CoresFigures]) -> str:
    head = [
        "shape",
        "form",
        "clients",
        "requests/s",
        "p50 ms",
        "CPU µs",
        "of it edges",
        "capacity/s",
    ]
    rows: list[list[str | float]] = [
        [
            f.shape, f.form, f.clients, f.requests_per_second, f.p50_ms, sum(f.cpu_us.values()),
            f.cpu_us.get(EDGE, 0.0), f.capacity,
        ]
        for f in figures
    ]  # fmt: skip
    return table(head, rows)


def _verdicts(figures: Sequence[CoresFigures]) -> list[Verdict]:
    by = {(f.shape, f.form, f.clients): f for f in figures}
    found = []
    for form, clients in CASES:
        one, many = by[ONE, form, clients], by[EDGE, form, clients]
        if clients > 1:
            what = f"{form}, {clients} clients: capacity of {EDGES} edges ÷ one process"
            found.append(at_least(what, many.capacity / one.capacity, 1.7))
            hop_us = sum(many.cpu_us.values()) - sum(one.cpu_us.values())
            what = f"{form}, {clients} clients: CPU that the hop adds to a request"
            found.append(at_most(what, hop_us, 5.0, "µs"))
        else:
            what = f"{form}, 1 client: added to the median latency"
            found.append(at_most(what, many.p50_ms - one.p50_ms, 0.1, "ms"))
    return [*found, at_most("failed requests", sum(f.failures for f in figures), 0)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cores", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--seconds", type=int, default=4, help="of each load")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are taken")
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
