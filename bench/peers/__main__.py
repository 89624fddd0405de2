"""`make bench-peers`: other projects' servers and ours, the same weights, one run.

Writes `bench/results/peers.json`, `bench/results/peers.svg` and the tables between the marks in
`docs/reference/performance.md`. On an interrupt it ends every process it started; environments are
reused.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from bench.figures.performance_page import write_block
from bench.figures.results_file import RESULTS, bench_store
from bench.measured.golden_model import BENCH_STORE
from bench.peers.load import clients_at_hand
from bench.peers.peer import Peer, PeerError
from bench.peers.report import PeerReport
from bench.peers.served_model import CLIENTS, served_model
from bench.peers.servers.bentoml_peer import BentoMl
from bench.peers.servers.flambeau_peer import Flambeau
from bench.peers.servers.litserve_peer import LitServe
from bench.peers.servers.mlserver_peer import MlServer
from bench.peers.servers.mosec_peer import Mosec
from bench.peers.servers.torchserve_peer import TorchServe
from bench.peers.servers.triton_peer import Triton
from bench.peers.session import Session
from bench.servers.measured_server import end_with_exception
from bench.servers.pinning import add_cores_option, become_client, cores_apart, where


def main() -> int:
    """Installs, measures, writes; returns 1 if a requested peer could not be measured."""
    end_with_exception()
    ours: list[Peer] = [Flambeau("flambeau", ""), Flambeau("flambeau-fp32", "onnx")]
    others: list[Peer] = [
        Triton(2), Triton(0), TorchServe(), Mosec(), LitServe(), MlServer(), BentoMl(),
    ]  # fmt: skip
    arguments = _arguments([peer.name for peer in others])
    clients_at_hand()
    chosen = [*ours, *(peer for peer in others if peer.name in arguments.peers)]
    versions, failures = _install(chosen)
    bench_store(arguments.store)
    models = [served_model(arguments.store, m, arguments.clients) for m in arguments.models]
    become_client(pinned=arguments.pinned)
    session = Session()
    installed = [peer for peer in chosen if peer.name in versions]
    session.measure(installed, models, arguments.rounds, arguments.seconds)
    failures |= {f"{server}, {model}": why for (server, model), why in session.failures.items()}
    report = PeerReport(
        figures=session.figures,
        starts=session.starts,
        ours=[peer.name for peer in ours],
        asked={p.name: p.asked for p in installed},
        bodies={p.name: {str(form): body for form, body in p.forms.items()} for p in installed},
        versions=versions,
        failures=failures,
        measured={
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "where": where(),
            "rounds": arguments.rounds,
            "seconds": arguments.seconds,
        },
    )
    _write(report)
    return 1 if failures else 0


def _install(peers: Sequence[Peer]) -> tuple[dict[str, str], dict[str, str]]:
    """Installs peers; returns versions of the installed ones, and the errors of the others."""
    versions, failures = {}, {}
    for peer in peers:
        try:
            versions[peer.name] = peer.install()
            print(f"{peer.name} {versions[peer.name]}", flush=True)
        except PeerError as error:
            failures[peer.name] = str(error)
            print(f"{peer.name} is not installed: {error}", flush=True)
    return versions, failures


def _write(report: PeerReport) -> None:
    if not report.figures:
        print("nothing was measured, nothing is written")
        return
    name = "peers-pinned" if cores_apart() else "peers"
    (RESULTS / f"{name}.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    (RESULTS / f"{name}.svg").write_text(report.plot())
    print(f"wrote {RESULTS}/{name}.json and {RESULTS}/{name}.svg")
    write_block(name, report.tables(f"../../bench/results/{name}.svg"))


def _arguments(peers: Sequence[str]) -> argparse.Namespace:
    def names(known: Sequence[str], text: str) -> list[str]:
        wrong = [name for name in text.split(",") if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"{wrong} unknown; known: {', '.join(known)}")
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument(
        "--peers",
        type=lambda text: names(peers, text),
        default=list(peers),
        metavar="A,B",
        help=f"which, of {', '.join(peers)}; ours always run",
    )
    parser.add_argument(
        "--models",
        type=lambda text: names(list(CLIENTS), text),
        default=list(CLIENTS),
        metavar="A,B",
        help=f"of {', '.join(CLIENTS)}",
    )
    parser.add_argument(
        "--clients",
        type=lambda text: tuple(int(n) for n in text.split(",")),
        metavar="N,N",
        help="instead of 1,32,64 (MLP) and 32 (CNN, encoder)",
    )
    parser.add_argument("--seconds", type=int, default=4, help="of load for each figure")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken")
    add_cores_option(parser)
    return parser.parse_args()  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
