"""`make bench-python`: an empty Python model beside an ONNX identity, and Triton's Python backend.

Rows of 16 FP32 numbers are returned as they are: by an ONNX identity, by Python models in the
server's process and in their own, and by Triton's Python backend (without a wait for batches). Each
is loaded over REST and gRPC, in turn within each round. CPU is the user and system time of all of a
server's processes for each answered request. The cost of a Python model is its CPU above that of
the ONNX identity, which passes through everything else. Prints tables and verdicts, and writes
`bench/results/python.json`.
"""

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict, table
from bench.measured.golden_model import ask_for, check_answers
from bench.peers.answers import ask_once, check
from bench.peers.load import NothingAnsweredError, load_grpc, load_rest
from bench.peers.peer import Floats, Form, PeerError
from bench.peers.process_tree import cpu_seconds
from bench.peers.running_server import running
from bench.peers.served_model import ServedModel
from bench.peers.servers.triton_peer import Triton
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.pinning import add_cores_option, become_client
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.golden import GoldenRows
from model_store.manifest import (
    Artifact,
    Draft,
    FileEntry,
    Golden,
    Lineage,
    PythonModel,
    Verification,
)
from model_store.store import ModelStore
from model_store.tolerance import Tolerance
from services.inference.backends.backend import Backend
from services.inference.backends.files_folder import FilesFolder
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import open_isolated_backend

WIDTH = 16
ROWS: Floats = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
ONNX, SHARED, OWN, BY_ROW = "onnx", "python-shared", "python-own", "python-by-row"
TRITON = "triton"
SOURCES = {
    SHARED: "class Model:\n    def infer(self, inputs):\n        return {'y': inputs['x']}\n",
    BY_ROW: "class Model:\n    def infer_one(self, x):\n        return {'y': x}\n",
}
SOURCES[OWN] = SOURCES[SHARED]
FORMS = (Form.JSON, Form.GRPC)
CLIENTS = (1, 64)
RUNS = 2000
SHARED_US, OWN_US = 20.0, 100.0
"""Targets of the cost of a request at 64 clients, in µs of CPU."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One load of one server."""

    server: str
    form: str
    clients: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    parser = argparse.ArgumentParser(
        prog="python -m bench.importing.python_models", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--no-triton", action="store_true", help="leave out Triton")
    add_cores_option(parser)
    given = parser.parse_args()
    become_client(pinned=given.pinned)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as store:
        for name in (ONNX, SHARED, OWN, BY_ROW):
            publish(ModelStore(store), name)
        peers = [] if given.no_triton else [_triton()]
        for _ in range(given.rounds):
            for name in (ONNX, SHARED, OWN, BY_ROW):
                figures += _ours(store, name, given.seconds)
            for peer in peers:
                figures += _peer(peer, given.seconds)
    middle = _medians(figures)
    print(_table(middle))
    calls = bare_calls()
    rows = [[name, *(f"{us:.1f}" for us in found)] for name, found in calls.items()]
    print(table(["a call of the backend", "1 row, µs", "32 rows, µs"], rows))
    write_results(
        "python",
        {"figures": [asdict(figure) for figure in middle], "calls_us": calls},
        _verdicts(middle),
    )


def publish(store: ModelStore, name: str) -> None:
    """Publishes an identity under the name of its kind."""
    signature = _signature()
    golden = GoldenRows({"x": ROWS}, {"y": ROWS})
    with tempfile.TemporaryDirectory() as folder:
        entry = partial(_entry, Path(folder))
        rows = Golden(file=entry("golden.safetensors", golden.to_bytes()), rows=len(ROWS))
        lineage = Lineage(recipe_sha256="0" * 64, data_sha256="0" * 64, git_commit=None,
                          library_versions={}, metrics={})  # fmt: skip
        draft = Draft(
            model=name,
            signature=signature,
            artifacts=(_artifact(entry, name),),
            golden=rows,
            lineage=lineage,
            files=(),
        )
        store.promote(name, store.publish(draft, Path(folder)).version, why="a benchmark's")


def bare_calls() -> dict[str, list[float]]:
    """Returns µs of one run of each backend, for 1 and 32 rows, and of the bare class."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        entry = partial(_entry, Path(folder))
        class_there: dict[str, Any] = {}
        exec(SOURCES[SHARED], class_there)
        found["the class alone"] = _timed(class_there["Model"]().infer)
        for name, opens in (
            (ONNX, open_backend), (SHARED, open_backend), (BY_ROW, open_backend),
            (OWN, open_isolated_backend),
        ):  # fmt: skip
            artifact = _artifact(entry, name)
            data = (Path(folder) / artifact.file.file).read_bytes()
            backend: Backend = opens(
                VerifiedArtifact(
                    entry=artifact,
                    signature=_signature(),
                    data=data,
                    folder=FilesFolder.of({artifact.file.file: data}),
                ),
                OpenOptions(),
            )
            found[name] = _timed(backend.run)
            backend.close()
    return found


def _timed(run: Callable[[Mapping[str, Array]], object]) -> list[float]:
    figures = []
    for rows in (1, 32):
        inputs = {"x": np.resize(ROWS, (rows, WIDTH))}
        for _ in range(RUNS // 10):
            run(inputs)
        started = time.perf_counter()
        for _ in range(RUNS):
            run(inputs)
        figures.append((time.perf_counter() - started) / RUNS * 1e6)
    return figures


def _ours(store: str, name: str, seconds: int) -> Iterator[Figure]:
    with measured_server(store, [name]) as server:
        model = _served(name)
        lengths = check_answers(server, model, "")
        for form in FORMS:
            loads = _loads(server.http, server.grpc, model, form, lengths[form])
            for clients in CLIENTS:
                yield _measured(name, server.pid, form, clients, loads, seconds)


def _triton() -> Triton:
    peer = Triton(0, "triton_identity.py")
    print(f"Triton {peer.install()}", flush=True)
    return peer


def _peer(peer: Triton, seconds: int) -> Iterator[Figure]:
    model = _served("identity")
    launch = peer.start(model)
    with running(launch, lambda: ask_once(peer, launch, model)) as server:
        lengths = check(peer, launch, model)
        for form in FORMS:
            loads = _loads(launch.http, launch.grpc, model, form, lengths[form])
            for clients in CLIENTS:
                yield _measured(TRITON, server.pid, form, clients, loads, seconds)


def _loads(
    http: str, grpc: str, model: ServedModel, form: Form, answer_bytes: int
) -> Callable[[int, int], Any]:
    ask = ask_for(model, form, model.rows[:1])
    if form is Form.GRPC:
        return lambda clients, seconds: load_grpc(grpc, ask, clients, seconds, answer_bytes)
    return lambda clients, seconds: load_rest(http, [ask], clients, seconds)


def _measured(
    name: str,
    pid: int,
    form: Form,
    clients: int,
    loads: Callable[[int, int], Any],
    seconds: int,
) -> Figure:
    with suppress(NothingAnsweredError):
        loads(clients, 1)
    before = cpu_seconds(pid)
    load = loads(clients, seconds)
    used_s = cpu_seconds(pid) - before
    if load.failed:
        raise PeerError(f"{name}: {load.failed} requests failed")
    figure = Figure(
        name,
        str(form),
        clients,
        load.answered / load.duration_s,
        load.p50_ms,
        load.p99_ms,
        used_s / load.answered * 1e6,
    )
    print(
        f"  {name}, {form}, {clients} clients: {figure.requests_per_second:,.0f} requests/s, "
        f"{figure.cpu_us:.0f} µs CPU",
        flush=True,
    )
    return figure


def _medians(figures: Sequence[Figure]) -> list[Figure]:
    groups: dict[tuple[str, str, int], list[Figure]] = {}
    for figure in figures:
        groups.setdefault((figure.server, figure.form, figure.clients), []).append(figure)
    return [
        Figure(*key, *(median(getattr(figure, name) for figure in group)
                       for name in ("requests_per_second", "p50_ms", "p99_ms", "cpu_us")))
        for key, group in groups.items()
    ]  # fmt: skip


def _table(figures: Sequence[Figure]) -> str:
    heads = ["server", "form", "clients", "requests/s", "p50 ms", "p99 ms", "CPU µs a request"]
    return table(heads, [
        [f.server, f.form, str(f.clients), f"{f.requests_per_second:,.0f}", f"{f.p50_ms:.2f}",
         f"{f.p99_ms:.2f}", f"{f.cpu_us:.0f}"]
        for f in figures
    ])  # fmt: skip


def _verdicts(figures: Sequence[Figure]) -> list[Verdict]:
    cpu_us = {(f.server, f.form, f.clients): f.cpu_us for f in figures}
    verdicts = []
    for form in map(str, FORMS):
        base = cpu_us[ONNX, form, 64]
        for name, what, target in ((SHARED, "our process", SHARED_US), (OWN, "its own", OWN_US)):
            verdict = Verdict(
                what=f"{form}, 64 clients, an empty Python model in {what}, above ONNX",
                value=cpu_us[name, form, 64] - base,
                bound="at most",
                target=target,
                unit="µs CPU a request",
            )
            verdicts.append(verdict)
        if (triton := cpu_us.get((TRITON, form, 64))) is not None:
            verdict = Verdict(
                what=f"{form}, 64 clients, the whole request: its own process ÷ Triton",
                value=cpu_us[OWN, form, 64] / triton,
                bound="at most",
                target=1.0,
            )
            verdicts.append(verdict)
    return verdicts


def _signature() -> Signature:
    x = TensorSpec(name="x", datatype="FP32", shape=(-1, WIDTH))
    return Signature(inputs=(x,), outputs=(x.model_copy(update={"name": "y"}),), max_batch_size=32)


def _served(name: str) -> ServedModel:
    return ServedModel(
        name=name, network="", input="x", output="y", datatype="FP32", row_shape=(WIDTH,),
        clients=CLIENTS, store="", rows=ROWS, expected=ROWS, weights=b"",
    )  # fmt: skip


def _artifact(entry: Callable[[str, bytes], FileEntry], name: str) -> Artifact:
    is_onnx = name == ONNX
    file = entry("model.onnx", _identity()) if is_onnx else entry(
        "model.py", SOURCES[name].encode()
    )  # fmt: skip
    return Artifact(
        name="model",
        kind="onnx" if is_onnx else "python",
        precision="fp32",
        file=file,
        python=None if is_onnx else _described(name),
        verification=Verification(
            max_abs_difference=0.0,
            agreement=1.0,
            metrics={},
            tolerance=Tolerance(max_abs_difference=0.0, min_agreement=1.0),
        ),
        latency_ms={1: 0.01},
    )


def _described(name: str) -> PythonModel:
    return PythonModel(name="Model", process="own" if name == OWN else "shared")


def _identity() -> bytes:
    import onnx
    from onnx import TensorProto, helper

    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH]) for name in "xy"
    ]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "identity", tensors[:1], tensors[1:]
    )
    opset = [helper.make_opsetid("", 20)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=10)
    data: bytes = model.SerializeToString()
    return data


def _entry(folder: Path, file: str, data: bytes) -> FileEntry:
    (folder / file).write_bytes(data)
    return FileEntry(file=file, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


if __name__ == "__main__":
    main()
