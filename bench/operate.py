"""`make bench-operate`: cost of metrics, keys and traces for the cheapest request.

Loads four servers of the tiny MLP in turn over REST; each has one feature more than the one before.
Each figure is the median of the ratios of single rounds, of requests a second and of CPU time for
each request. Prints a table and verdicts, and writes `bench/results/operate.json`.

- *bare*: metrics that count nothing (`bench/servers/uncounted_server.py`);
- *metrics*: a server with default settings;
- *keys*: every request has an API key with a limit for requests and one for rows;
- *traces*: in addition, a hundredth of the requests is traced and exported to a collector.

The order of the servers is reversed in every round, so that a slowing machine favours none.
"""

import argparse
import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, percentile, ratio, table
from bench.loads.closed_loop import different_load, generator_of
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
)
from bench.peers.peer import Ask, Form
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.metrics_page import read_metrics
from bench.servers.pinning import add_cores_option, become_client
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore
from services.access.api_keys import ApiKey, add_key, digest_of, new_key

MODEL, ARTIFACT, FORM = "tiny-mlp", "onnx", Form.JSON
CLIENTS = 64
UNREACHED = 1e9
"""A rate limit that is counted against and never reached."""
TRACED = 0.01
WARM_UP_S = 2
SCRAPES = 100
BARE, METRICS, WITH_KEYS, WITH_TRACES = "bare", "metrics", "keys", "traces"
STEPS = {
    "metrics, tracing off": (METRICS, BARE),
    "keys": (WITH_KEYS, METRICS),
    "metrics, tracing off and keys together": (WITH_KEYS, BARE),
    "traces of 1 %": (WITH_TRACES, WITH_KEYS),
}
"""The feature that each step adds, and the two servers that are compared."""
JUDGED = ("metrics, tracing off and keys together", "traces of 1 %")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """Figures of one load of one server, or the medians of several."""

    server: str
    requests_per_second: float
    cpu_us: float
    """User and system time of the server for each request."""
    least_cpu_us: float
    """Minimum of all rounds: informative even where other work on the machine disturbs medians."""
    p50_ms: float
    p99_ms: float
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one feature: medians and quartiles of the rounds' ratios."""

    what: str
    throughput: float
    throughput_quartiles: tuple[float, float]
    cpu: float
    cpu_quartiles: tuple[float, float]


Round = Mapping[str, LoadFigures]
"""One load of each server, by server name."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A running server, and the requests for it."""

    server: ServerProcess
    asks: Sequence[Ask]


def cost_of(what: str, rounds: Sequence[Round]) -> Cost:
    """Returns the cost of a step of `STEPS`, from the ratios of single rounds."""
    more, less = STEPS[what]
    rates = [ratio(one[more].requests_per_second, one[less].requests_per_second) for one in rounds]
    times = [ratio(one[more].cpu_us, one[less].cpu_us) for one in rounds]
    return Cost(
        what=what,
        throughput=median(rates),
        throughput_quartiles=(percentile(rates, 25), percentile(rates, 75)),
        cpu=median(times),
        cpu_quartiles=(percentile(times, 25), percentile(times, 75)),
    )


def medians(rounds: Sequence[Round]) -> list[LoadFigures]:
    """Returns the medians of each server over the rounds; failures add up."""
    found = []
    for name in rounds[0]:
        loads = [one[name] for one in rounds]
        numbers = ("requests_per_second", "cpu_us", "p50_ms", "p99_ms")
        middle = {field: median(getattr(load, field) for load in loads) for field in numbers}
        least, failed = min(load.cpu_us for load in loads), sum(load.failed for load in loads)
        found.append(replace(loads[0], **middle, least_cpu_us=least, failed=failed))
    return found


def verdicts(costs: Sequence[Cost], loads: Sequence[LoadFigures], dropped: float) -> list[Verdict]:
    """Returns the figures beside their targets."""
    found = []
    for cost in costs:
        if cost.what in JUDGED:
            name = f"{MODEL}, {FORM}, {CLIENTS} clients, {cost.what}"
            found += [
                Verdict(what=f"{name}: requests/s ÷ without", value=cost.throughput,
                        bound="at least", target=0.95),
                Verdict(what=f"{name}: server CPU a request ÷ without", value=cost.cpu,
                        bound="at most", target=1.05),
            ]  # fmt: skip
    failed = sum(load.failed for load in loads)
    return [
        *found,
        Verdict(what="failed requests", value=failed, bound="at most", target=0),
        Verdict(what="spans that were dropped", value=dropped, bound="at most", target=0),
    ]


def run_round(
    variants: Mapping[str, Variant], number: int, load: Callable[[str, Variant], LoadFigures]
) -> dict[str, LoadFigures]:
    """Loads every server once; the order is reversed in rounds with an odd number."""
    order = list(variants)[:: -1 if number % 2 else 1]
    found = {name: load(name, variants[name]) for name in order}
    said = ", ".join(f"{n} {found[n].requests_per_second:,.0f}/s" for n in variants)
    print(f"  round {number + 1}: {said}", flush=True)
    return {name: found[name] for name in variants}


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    with _variants(store, given.keys) as variants:
        for name, variant in variants.items():
            _load(name, variant, seconds=WARM_UP_S)
            _check_that_it_is(name, variant)
        load = partial(_load, seconds=given.seconds)
        rounds = [run_round(variants, number, load) for number in range(given.rounds)]
        scrape_ms = _scrape_ms(variants[METRICS].server)
        dropped = read_metrics(variants[WITH_TRACES].server.metrics).total(
            "flambeau_spans_total", outcome="dropped"
        )
    loads, costs = medians(rounds), [cost_of(what, rounds) for what in STEPS]
    print(f"\n{_tables(loads, costs)}\n\na scrape costs the server {scrape_ms:.1f} ms")
    document = {
        "keys": given.keys,
        "generator": generator_of(FORM),
        "rounds": given.rounds,
        "seconds": given.seconds,
        "loads": list(map(asdict, loads)),
        "costs": list(map(asdict, costs)),
        "scrape_cpu_ms": scrape_ms,
    }
    write_results("operate", document, verdicts(costs, loads, dropped))


@contextlib.contextmanager
def _variants(store: ModelStore, keys: int) -> Iterator[dict[str, Variant]]:
    """Runs all servers at once: an idle one costs the others next to nothing, and all alike.

    Args:
        store: model store of the model.
        keys: number of keys that take turns on each connection.
    """
    model = golden_model(store, newest_manifest(store, MODEL))
    ask = ask_for(model, FORM, model.rows[:1])
    with TemporaryDirectory(prefix="bench-operate-") as folder, contextlib.ExitStack() as stack:
        file = Path(folder) / "keys.yaml"
        secrets = [_give_out(file, f"caller-{number}") for number in range(keys)]
        headers = [{**ask.headers, "Authorization": f"Bearer {secret}"} for secret in secrets]
        with_keys = [replace(ask, headers=one) for one in headers]
        door = f"api_keys_file={file}"
        traces = (f"trace_endpoint={stack.enter_context(_collector())}", f"trace_ratio={TRACED}")

        def start(*settings: str, module: str = "flambeau") -> ServerProcess:
            server = measured_server(store.url, [MODEL], ARTIFACT, *settings, module=module)
            return stack.enter_context(server)

        found = {
            BARE: Variant(start(module="bench.servers.uncounted_server"), [ask]),
            METRICS: Variant(start(), [ask]),
            WITH_KEYS: Variant(start(door), with_keys),
            WITH_TRACES: Variant(start(door, *traces), with_keys),
        }
        for name in (BARE, METRICS):
            check_answers(found[name].server, model, ARTIFACT)
        yield found


def _give_out(file: Path, name: str) -> str:
    """Adds a new key to the file and returns it."""
    secret = new_key()
    key = ApiKey(
        name=name,
        sha256=digest_of(secret).hex(),
        grants=(f"infer:{MODEL}",),
        requests_per_s=UNREACHED,
        rows_per_s=UNREACHED,
    )
    add_key(file, key)
    return secret


@contextlib.contextmanager
def _collector() -> Iterator[str]:
    """Runs a collector that discards spans, on the client's core. Yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _check_that_it_is(name: str, variant: Variant) -> None:
    """Checks that a warmed-up server does the measured work and nothing more.

    Raises:
        RuntimeError: the server does less or more.
    """
    page, seen = read_metrics(variant.server.metrics), set()
    if page.total("flambeau_requests_total"):
        seen.add(METRICS)
    if _status_without_key(variant) == 401:
        seen.add(WITH_KEYS)
    if page.total("flambeau_spans_total", outcome="exported"):
        seen.add(WITH_TRACES)
    steps = (METRICS, WITH_KEYS, WITH_TRACES)
    wanted = set(steps[: (BARE, *steps).index(name)])
    if seen != wanted:
        raise RuntimeError(f"the server '{name}' has {sorted(seen)} and not {sorted(wanted)}")


def _status_without_key(variant: Variant) -> int:
    ask = variant.asks[0]
    url = f"http://{variant.server.http}{ask.path}"
    headers = {name: v for name, v in ask.headers.items() if name != "Authorization"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, ask.body, headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _load(name: str, variant: Variant, seconds: int) -> LoadFigures:
    server = variant.server
    before = cpu_seconds(server.pid)
    load = different_load(server, FORM, variant.asks, CLIENTS, seconds)
    cpu_us = (cpu_seconds(server.pid) - before) / load.answered * 1e6
    return LoadFigures(
        server=name,
        requests_per_second=load.answered / load.duration_s,
        cpu_us=cpu_us,
        least_cpu_us=cpu_us,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        failed=load.failed,
    )


def _scrape_ms(server: ServerProcess) -> float:
    """Returns the CPU time of one scrape of a server's metrics; Prometheus scrapes every 15 s."""
    before = cpu_seconds(server.pid)
    for _ in range(SCRAPES):
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
            page.read()
    return (cpu_seconds(server.pid) - before) / SCRAPES * 1e3


def _tables(loads: Sequence[LoadFigures], costs: Sequence[Cost]) -> str:
    servers = table(
        ["server", "requests/s", "CPU µs", "least", "p50 ms", "p99 ms", "failed"],
        [
            [
                x.server, x.requests_per_second, x.cpu_us, x.least_cpu_us, x.p50_ms, x.p99_ms,
                x.failed,
            ]
            for x in loads
        ],
    )  # fmt: skip
    steps = table(
        ["what", "requests/s ÷", "quartiles", "", "CPU ÷", "quartiles", ""],
        [[x.what, x.throughput, *x.throughput_quartiles, x.cpu, *x.cpu_quartiles] for x in costs],
    )
    return f"{servers}\n\n{steps}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.operate", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--seconds", type=int, default=2, help="of each load of a round")
    parser.add_argument("--rounds", type=int, default=32, help="of which the medians are taken")
    parser.add_argument(
        "--keys", type=int, default=1, help="that take turns on each connection, as of a proxy"
    )
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
