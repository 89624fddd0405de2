"""`make bench-torchserve`: the same archives on TorchServe 0.12 and on our server with its API.

Both get the same `config.properties`: one worker, batches of 32, 2 ms to form them. Prints
verdicts, and writes `bench/results/torchserve.json` and docs/reference/performance-torchserve.md.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import MISSING, Verdict, at_least, at_most, ratio
from bench.measured.golden_model import BENCH_STORE
from bench.peers.figures import Figure, Start, median_figures, median_starts
from bench.peers.load import clients_at_hand
from bench.peers.peer import Form, Peer
from bench.peers.served_model import served_model
from bench.peers.servers.torchserve_door_peer import TorchServeDoor
from bench.peers.servers.torchserve_peer import TorchServe
from bench.peers.session import Session
from bench.servers.measured_server import end_with_exception
from bench.servers.pinning import add_cores_option, become_client

SMALL, LARGE = "tiny-mlp", "cnn"
MANY = (32, 64)
CPU_TIMES, THROUGHPUT_TIMES, MEDIAN_TIMES, START_S = 2.0, 1.2, 0.5, 1.5
"""Targets: requests for a second of the server's CPU, requests a second, the median of one client,
each against TorchServe's; and the time from the start to the first answer."""


def main() -> int:
    """Measures, prints and writes. Returns 1 if a server could not be measured."""
    end_with_exception()
    given = _arguments()
    clients_at_hand()
    ours, theirs = TorchServeDoor(), TorchServe()
    peers: list[Peer] = [ours, theirs]
    versions = {peer.name: peer.install() for peer in peers}
    bench_store(given.store)
    models = [
        served_model(given.store, SMALL, (1, *MANY)),
        served_model(given.store, LARGE, (32,)),
    ]
    become_client(pinned=given.pinned)
    session = Session()
    session.measure(peers, models, given.rounds, given.seconds)
    figures, starts = median_figures(session.figures), median_starts(session.starts)
    document: Mapping[str, object] = {
        "versions": versions,
        "figures": [asdict(one) for one in figures],
        "starts": [asdict(one) for one in starts],
    }
    write_results("torchserve", document, verdicts(figures, starts, ours.name, theirs.name))
    for (server, model), why in session.failures.items():
        print(f"{server} with {model}: {why}")
    return 1 if session.failures else 0


def verdicts(
    figures: Sequence[Figure], starts: Sequence[Start], ours: str, theirs: str
) -> list[Verdict]:
    """Returns the figures beside their targets.

    Args:
        figures: medians of the rounds.
        starts: likewise.
        ours: name of our server.
        theirs: name of TorchServe.
    """
    by_case = {(one.server, one.model, one.form, one.clients): one for one in figures}

    def both(model: str, form: Form, clients: int, field: str) -> tuple[float, float]:
        mine, other = (by_case.get((name, model, form, clients)) for name in (ours, theirs))
        return (
            getattr(mine, field) if mine else MISSING,
            getattr(other, field) if other else MISSING,
        )

    found = []
    for form in (Form.JSON, Form.GRPC):
        for clients in MANY:
            mine, other = both(SMALL, form, clients, "cpu_us")
            what = (
                f"Tiny MLP, {form}, {clients} clients: requests of a second of CPU ÷ TorchServe's"
            )
            found.append(at_least(what, ratio(other, mine), CPU_TIMES))
        mine, other = both(SMALL, form, 1, "p50_ms")
        what = f"Tiny MLP, {form}, 1 client: median ÷ TorchServe's"
        found.append(at_most(what, ratio(mine, other), MEDIAN_TIMES))
    for form in Form:
        mine, other = both(LARGE, form, 32, "requests_per_second")
        what = f"CNN, {form}, 32 clients: requests/s ÷ TorchServe's"
        found.append(at_least(what, ratio(mine, other), THROUGHPUT_TIMES))
    cold = {(one.server, one.model): one.cold_start_s for one in starts}
    what = "Tiny MLP: start to the first answer"
    found.append(at_most(what, cold.get((ours, SMALL), MISSING), START_S, "s"))
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.torchserve_migration", description=__doc__
    )
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--seconds", type=int, default=4, help="of load for each figure")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken")
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
