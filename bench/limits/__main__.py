"""`make bench-limits`: open connections, the slowest answers at half of capacity, large tensors.

Rounds take turns: each has every load once. Prints verdicts and writes
`bench/results/limits.json`.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, at_least, at_most, short
from bench.limits.connections import PER_SECOND, ConnectionFigures, measure_connections
from bench.limits.tails import Tail, TailFigures
from bench.limits.tensors import TensorFigures, tensor_server
from bench.measured.golden_model import BENCH_STORE, newest_manifest
from bench.peers.peer import Form
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.pinning import add_cores_option, become_client
from bench.servers.yardstick import running_yardstick

SMALL, LARGE, FP32 = "tiny-mlp", "cnn", "onnx"
CASES = ((SMALL, Form.JSON), (SMALL, Form.GRPC), (LARGE, Form.BINARY))


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    connections = measure_connections(store, given.seconds * given.rounds)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="flambeau-bench-"))
        tensors = stack.enter_context(tensor_server(Path(folder)))
        servers = {
            model: stack.enter_context(measured_server(store.url, [model]))
            for model in (SMALL, LARGE)
        }
        manifest = newest_manifest(store, SMALL)
        _, yardstick = stack.enter_context(running_yardstick(store, manifest, FP32))
        tails = [
            Tail(store, servers[model], model, form, yardstick if form is Form.JSON else "")
            for model, form in CASES
        ]
        for _ in range(given.rounds):
            for tail in tails:
                tail.offer(given.seconds)
            tensors.measure(given.tensor_seconds)
    tail_figures = [tail.figures() for tail in tails]
    document = {
        "connections": asdict(connections),
        "tails": list(map(asdict, tail_figures)),
        "tensors": asdict(tensors.figures()),
    }
    write_results("limits", document, verdicts(connections, tail_figures, tensors.figures()))


def verdicts(
    connections: ConnectionFigures, tails: Sequence[TailFigures], tensors: TensorFigures
) -> list[Verdict]:
    """Returns the figures beside their targets."""
    name = f"{connections.connections:,} open connections"
    client = f"client: {short(connections.client_cpu_share * 100)} %"
    what = f"{name}, {PER_SECOND} requests/s in all: CPU of a core ({client})"
    found = [
        at_most(what, connections.server_cpu_share * 100, 5, "%"),
        at_most(f"{name}: memory of each", connections.bytes_each / 1000, 10, "KB"),
    ]
    for tail in tails:
        name = f"{tail.model}, {tail.form}, half of {tail.capacity_per_second:,.0f} requests/s"
        if tail.model == SMALL:
            said = f"without {short(tail.beside_pauses_share * 100)} % beside pauses of the client"
            if tail.yardstick_p999_ms:
                said += f"; yardstick: {short(tail.yardstick_p999_ms)} ms"
            found.append(at_most(f"{name}: p99.9 ({said})", tail.p999_ms, 3, "ms"))
        else:
            batch = f"a batch of {short(tail.batch_rows)} rows, {short(tail.batch_ms)} ms"
            found.append(at_most(f"{name}: p99.9 ÷ {batch}", tail.batches, 1.3))
    for name, cpu_ms in tensors.cpu_ms.items():
        if name.startswith("1 MB"):
            found.append(at_most(f"tensor of {name}: server CPU", cpu_ms, 0.5, "ms"))
    for name, rate in tensors.gigabytes_per_second.items():
        if name.startswith("64 MB"):
            found.append(at_least(f"tensor of {name}, 1 client", rate, 2, "GB/s"))
    alone = f"without it: {short(tensors.longest_ping_alone_ms)} ms"
    what = f"JSON of 1 MB, 1 client: longest ping of a neighbour ({alone})"
    found.append(at_most(what, tensors.longest_ping_ms, 2, "ms"))
    failures = tensors.failures + sum(tail.failures for tail in tails)
    return [*found, at_most("failed requests", failures, 0)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--seconds", type=float, default=5, help="of each load of small requests")
    parser.add_argument("--tensor-seconds", type=int, default=2, help="of each of large tensors")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are taken")
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
