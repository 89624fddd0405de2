"""`make bench-start`: startup time of a server of 1, 16 and 100 models until it is ready.

Each start is a process of its own, timed from its creation until `/v2/health/ready` returns 200,
with every model loaded, verified and warm. *From nothing*: no artifact choice is cached, as in a
new pod; *remembered*: the choices of an earlier start are cached. The two take turns. The models
are copies of the tiny MLP with TorchScript, ONNX and ONNX int8 under a hundred names. Prints a
table and verdicts and writes `bench/results/start.json`.

Nothing is pinned: loading may use every core. Background measurements after a start
(`artifact chosen`) are excluded; their duration is shown beside it.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict, ratio, table
from bench.measured.golden_model import BENCH_STORE, newest_manifest
from bench.measured.models import ensure_bench_models
from bench.measured.version_copy import publish_copy
from bench.peers.servers.flambeau_peer import ROOT
from bench.servers.measured_server import end_with_exception
from bench.servers.process_figures import resident_mebibytes
from flambeau.server_process import ServerProcess, server_process
from model_store.store import ModelStore

MODEL = "tiny-mlp"
STORE = ROOT / "var" / "bench_start_store"
TARGETS_S = {16: 3.0, 100: 12.0}
REMEMBERED_GROWTH = 1.1
"""Largest ratio of a remembered start to one from nothing: a tenth is noise."""
CHOICE_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a server."""

    ready_s: float
    cpu_s: float
    """CPU time of the server's process until then."""
    resident_mb: float
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFigures:
    """Medians over the starts of one kind."""

    models: int
    remembered: bool
    ready_s: float
    worst_s: float
    cpu_s: float
    resident_mb: float
    threads: int
    chosen_s: float
    """From ready to the last `artifact chosen` of the first start; 0 if all choices are cached."""


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = ensure_start_store(max(given.models))
    figures = [found for count in given.models for found in _measure(store, count, given.rounds)]
    print(_table(figures))
    load = os.getloadavg()[0]
    document = {"rounds": given.rounds, "load_average": load, "starts": list(map(asdict, figures))}
    write_results("start", document, _verdicts(figures))


def ensure_start_store(count: int) -> ModelStore:
    """Returns a store with that many copies of the tiny MLP, each under a name of its own."""
    ensure_bench_models(str(BENCH_STORE), only=MODEL)
    source, store = ModelStore(str(BENCH_STORE)), ModelStore(str(STORE))
    manifest, there = newest_manifest(source, MODEL), set(store.models())
    for name in _names(count):
        if name not in there:
            publish_copy(source, manifest, store, name)
    return store


def _names(count: int) -> list[str]:
    return [f"{MODEL}-{number:03}" for number in range(count)]


def _measure(store: ModelStore, count: int, rounds: int) -> Iterator[StartFigures]:
    """Measures starts from nothing, and then remembered ones."""
    with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
        choices = Path(folder) / "remembered.json"
        _, chosen_s = _start(store, count, choices, awaits_choice=True)
        fresh, again = [], []
        for number in range(rounds):
            fresh.append(_start(store, count, Path(folder) / f"{number}.json")[0])
            again.append(_start(store, count, choices)[0])
        yield _figures(count, fresh, remembered=False, chosen_s=chosen_s)
        yield _figures(count, again, remembered=True, chosen_s=0.0)


def _start(
    store: ModelStore, count: int, choices: Path, *, awaits_choice: bool = False
) -> tuple[Start, float]:
    """Starts a server once. Returns the figures, and the time of choosing if that is awaited."""
    log = choices.with_suffix(".log")
    options = ["--store", store.url, "--set", f"choice_file={choices}"]
    options += ["--set", f"needs_file={choices.with_suffix('.needs')}"]
    options += [part for name in _names(count) for part in ("--model", name)]
    began = time.perf_counter()
    with _logging_to(log) as before_exec, server_process(options, before_exec) as server:
        _check_ready(server, count)
        ready_s = time.perf_counter() - began
        found = Start(
            ready_s=ready_s,
            cpu_s=_cpu_seconds(server.pid),
            resident_mb=resident_mebibytes(server.pid) * 2**20 / 1e6,
            threads=len(os.listdir(f"/proc/{server.pid}/task")),
        )
        chosen_s = _await_choices(log, count) if awaits_choice else 0.0
    return found, chosen_s


def _check_ready(server: ServerProcess, count: int) -> None:
    """Asserts that the server is ready: that all its models are served."""
    with urllib.request.urlopen(f"http://{server.http}/v2/health/ready", timeout=10) as reply:
        assert json.load(reply) == {"ready": True}, f"{count} models are not all served"


@contextmanager
def _logging_to(log: Path) -> Iterator[Callable[[], None]]:
    """Yields a `preexec_fn` that sends a server's log to a file."""
    with log.open("wb") as file:

        def prepare() -> None:
            os.dup2(file.fileno(), 2)

        yield prepare


def _await_choices(log: Path, count: int) -> float:
    """Returns the seconds until every version has its choice, from the server's log."""
    began = time.monotonic()
    with subprocess.Popen(
        ["/usr/bin/tail", "-n", "+1", "-f", str(log)], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        left = count
        for line in tail.stdout:
            left -= '"message":"artifact chosen"' in line
            if not left or time.monotonic() - began > CHOICE_TIMEOUT_S:
                break
        tail.terminate()
    return time.monotonic() - began if not left else float("nan")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _figures(
    count: int, starts: Sequence[Start], *, remembered: bool, chosen_s: float
) -> StartFigures:
    return StartFigures(
        models=count,
        remembered=remembered,
        ready_s=median(start.ready_s for start in starts),
        worst_s=max(start.ready_s for start in starts),
        cpu_s=median(start.cpu_s for start in starts),
        resident_mb=median(start.resident_mb for start in starts),
        threads=int(median(start.threads for start in starts)),
        chosen_s=chosen_s,
    )


def _verdicts(figures: Sequence[StartFigures]) -> list[Verdict]:
    """Returns the figures beside their targets."""
    found = [
        Verdict(what=f"{one.models} models, {_kind(one)}: process start to ready",
                value=one.ready_s, bound="at most", target=TARGETS_S[one.models], unit="s")
        for one in figures
        if one.models in TARGETS_S
    ]  # fmt: skip
    by_kind = {(one.models, one.remembered): one for one in figures}
    counts = sorted({one.models for one in figures})
    found += [
        Verdict(what=f"{count} models: remembered ÷ from nothing",
                value=ratio(by_kind[count, True].ready_s, by_kind[count, False].ready_s),
                bound="at most", target=REMEMBERED_GROWTH)
        for count in counts
    ]  # fmt: skip
    few, many = (by_kind[count, False] for count in (counts[0], counts[-1]))
    if many.models > few.models:
        grown = (many.resident_mb - few.resident_mb) / (many.models - few.models)
        found.append(
            Verdict(what="memory of each further model", value=grown, bound="at most", target=1.0,
                    unit="MB")
        )  # fmt: skip
    return found


def _kind(figures: StartFigures) -> str:
    return "remembered" if figures.remembered else "from nothing"


def _table(figures: Sequence[StartFigures]) -> str:
    head = ["models", "", "ready s", "worst s", "CPU s", "memory MB", "threads", "chosen after s"]
    rows: list[list[str | float]] = [
        [x.models, _kind(x), x.ready_s, x.worst_s, x.cpu_s, x.resident_mb, x.threads, x.chosen_s]
        for x in figures
    ]
    return table(head, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument(
        "--models",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[1, 16, 100],
        metavar="A,B",
    )
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind")
    return parser.parse_args()


if __name__ == "__main__":
    main()
