"""`make bench-commits`: a small request served by this checkout and by an earlier commit, in turns.

Both serve the same artifact with the same libraries. A round loads one after the other, and the
next round begins with the other one, so that a slow minute of the machine affects both. Prints the
median of the rounds' ratios with their quartiles: a ratio within the quartiles is noise.

    make bench-commits ARGS="--before v0.1.0"
"""

import argparse
import contextlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.loads.closed_loop import closed_loop, warm_up
from bench.measured.golden_model import ask_for, check_answers, golden_model, newest_manifest
from bench.measured.models import STORE, ensure_bench_models
from bench.peers.peer import Ask, Form
from bench.peers.process_tree import cpu_seconds
from bench.peers.servers.flambeau_peer import ROOT
from bench.servers.measured_server import before_exec, end_with_exception
from bench.servers.pinning import add_cores_option, become_client, where
from flambeau.server_process import ServerProcess, server_process
from model_store.store import ModelStore

MODEL = "tiny-mlp"
ARTIFACT = "onnx"
CASES = tuple((form, clients) for form in (Form.JSON, Form.GRPC) for clients in (1, 64))


@dataclass(slots=True)
class Case:
    """One kind of load, and the figures of each round: [rounds, before and after].

    Attributes:
        form: protocol and body of the requests.
        clients: concurrent clients.
        cpu_us: CPU time of the server's processes for each request.
        p50_ms: median latency seen by a client.
    """

    form: Form
    clients: int
    cpu_us: list[tuple[float, float]] = field(default_factory=list)
    p50_ms: list[tuple[float, float]] = field(default_factory=list)

    def line(self) -> str:
        """Formats one line of output."""
        cpu, p50 = _ratio(self.cpu_us), _ratio(self.p50_ms)
        return f"{self.form:12} {self.clients:>3} clients   CPU {cpu}   p50 {p50}"


def _ratio(rounds: list[tuple[float, float]]) -> str:
    """Formats the median ratio of after to before, and both medians."""
    figures = np.asarray(rounds)
    low, middle, high = np.percentile(figures[:, 1] / figures[:, 0], (25, 50, 75))
    before, after = np.median(figures, 0)
    return f"{middle:.3f} ({low:.3f} to {high:.3f}; {before:.3g} then {after:.3g})"


def main() -> None:
    """Measures and prints."""
    end_with_exception()
    given = _arguments()
    ensure_bench_models(str(STORE), MODEL)
    become_client(pinned=given.pinned)
    cases = [Case(form, clients) for form, clients in CASES]
    with tempfile.TemporaryDirectory(prefix="bench-commits-") as folder:
        _check_out(given.before, Path(folder))
        for _ in range(given.starts):
            with (
                _serving(Path(folder), given.python) as before,
                _serving(ROOT, given.python) as after,
            ):
                _measure(cases, before, after, given.rounds, given.seconds)
    print(f"after / before ({given.before}), {where()}; median (quartiles; medians, µs and ms)")
    for case in cases:
        print(case.line())


def _measure(
    cases: list[Case], before: ServerProcess, after: ServerProcess, rounds: int, seconds: int
) -> None:
    store = ModelStore(str(STORE))
    model = golden_model(store, newest_manifest(store, MODEL))
    for server in before, after:
        lengths = check_answers(server, model, ARTIFACT)
        for case in cases:
            ask = ask_for(model, case.form, model.rows[:1])
            warm_up(server, case.form, ask, case.clients, lengths[case.form])
    for number in range(rounds):
        for case in cases:
            ask = ask_for(model, case.form, model.rows[:1])
            order = (before, after) if number % 2 == 0 else (after, before)
            found = {s.pid: _one(s, case, ask, seconds, lengths[case.form]) for s in order}
            pair = found[before.pid], found[after.pid]
            case.cpu_us.append((pair[0][0], pair[1][0]))
            case.p50_ms.append((pair[0][1], pair[1][1]))
            print(f"  {case.form}, {case.clients} clients: {pair[0][0]:.1f} µs of CPU a request "
                  f"before, {pair[1][0]:.1f} after", flush=True)  # fmt: skip


def _one(
    server: ServerProcess, case: Case, ask: Ask, seconds: int, answer_bytes: int
) -> tuple[float, float]:
    """Returns CPU time in µs for each request, and the median latency in ms."""
    cpu = cpu_seconds(server.pid)
    load = closed_loop(server, case.form, ask, case.clients, seconds, answer_bytes)
    return (cpu_seconds(server.pid) - cpu) / load.answered * 1e6, load.p50_ms


def _check_out(commit: str, folder: Path) -> None:
    """Extracts the files of a commit of this repository, without its history."""
    with subprocess.Popen(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(["tar", "-x"], cwd=folder, stdin=archive.stdout, check=True)
    if archive.returncode:
        sys.exit(f"git knows no commit {commit!r} here; name one that `git log` shows")


@contextlib.contextmanager
def _serving(folder: Path, python: str) -> Iterator[ServerProcess]:
    """Runs a server from a checkout, with the libraries of this process."""
    options = ["--store", str(STORE), "--model", MODEL, "--artifact", ARTIFACT]
    options += ["--set", "choose_artifact_budget_s=0"]
    paths = os.pathsep.join((str(folder), sysconfig.get_path("purelib")))
    with server_process(
        options,
        before_exec(),
        python=python,
        folder=str(folder),
        environment={**os.environ, "PYTHONPATH": paths},
    ) as server:
        yield server


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.commits", description=__doc__)
    parser.add_argument("--before", default="HEAD", help="the commit to compare with")
    parser.add_argument("--starts", type=int, default=3, help="of both servers")
    parser.add_argument("--rounds", type=int, default=4, help="of each start")
    parser.add_argument("--seconds", type=int, default=3, help="of each load")
    parser.add_argument("--python", default=sys.executable, help="the servers' interpreter")
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
