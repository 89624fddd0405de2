"""`make bench-gpu`: served ÷ raw on a GPU, for the CNN and the encoder of the bench store.

In: the store that `make bench` fills. Out: samples a second of each FP32 artifact in a loop at its
best batch size, the same served over REST binary and gRPC, and their ratio, printed and written to
`bench/results/gpu.json`. Without a GPU it reports so and measures nothing.

The raw model runs in this process, before and after each served figure, while the server is idle.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import mean

import numpy as np
import torch

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import MISSING, Verdict, at_least
from bench.loads.closed_loop import closed_loop, warm_up
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
    read_golden,
)
from bench.measured.raw_model import runs_per_second
from bench.peers.peer import Form, PeerError
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.metrics_page import read_metrics
from flambeau.protocol.tensors import Array
from model_store.manifest import Artifact, Manifest
from model_store.store import ModelStore
from services.errors import DeviceError
from services.inference.backends.backend import Backend
from services.inference.backends.device import Device, parse_device
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact

SERVED_OVER_RAW = 0.95
FORMS = (Form.BINARY, Form.GRPC)
RUN = "flambeau_execution_duration_seconds"
QUEUE = "flambeau_queue_duration_seconds"
RAW_S = 1.0
MOST_CLIENTS = 256
BATCHES_IN_FLIGHT = 4
"""Batches that the clients' requests fill: two that run, and two that arrive meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One artifact, served through one protocol."""

    model: str
    artifact: str
    form: str
    rows: int
    """Rows of a request."""
    settings: tuple[str, ...]
    """Those of the server that differ from the defaults, besides the device."""
    clients: int
    raw_samples_per_second: float
    """Rate at the best batch size: the mean of before and after."""
    best_batch_size: int
    served_samples_per_second: float
    ratio_to_raw: float
    p50_ms: float
    p99_ms: float
    failures: int
    batch_rows: float
    """Mean rows of a batch."""
    run_ms: float
    """Mean milliseconds of a batch, from joining its rows to dividing its outputs."""
    runs_at_once: float
    """Mean number of batches that ran."""
    queue_ms: float
    """Mean milliseconds of a request from its admission to its batch."""


def main() -> None:
    """Measures and prints, or reports why it cannot."""
    given = _arguments()
    device: Device = given.device
    if device.kind == "cuda" and not torch.cuda.is_available():
        print(
            f"nothing measured: no CUDA GPU here (torch {torch.__version__} says "
            "torch.cuda.is_available() is False)"
        )
        return
    end_with_exception()
    store = bench_store(given.store)
    name = torch.cuda.get_device_name(device.index) if device.kind == "cuda" else "CPU"
    print(f"device {device}: {name}", flush=True)
    figures: list[Figure] = []
    verdicts: list[Verdict] = []
    for model in given.models:
        manifest = newest_manifest(store, model)
        for artifact in manifest.artifacts:
            if artifact.precision != "fp32":
                continue
            try:
                figures += _measure(store, manifest, artifact, device, given)
            except PeerError as error:  # an artifact that this GPU's answers do not verify
                print(f"{model}, {artifact.name}: not served: {error}", flush=True)
                verdicts.append(_verdict(f"{model}, {artifact.name}", MISSING))
    verdicts += [_verdict(f"{f.model}, {f.artifact}, {_load(f)}", f.ratio_to_raw) for f in figures]
    write_results("gpu", {"device": name, "served": [asdict(f) for f in figures]}, verdicts)


def _verdict(what: str, ratio: float) -> Verdict:
    return at_least(f"{what}: served over raw", ratio, SERVED_OVER_RAW)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE))
    parser.add_argument("--models", nargs="+", default=["cnn", "encoder"])
    parser.add_argument("--device", type=parse_device, default=parse_device("cuda"))
    parser.add_argument("--seconds", type=int, default=5, help="of load for each figure")
    parser.add_argument("--rows", type=int, default=1, help="of a request")
    parser.add_argument(
        "--processes", default="auto", help="of the server, that accept requests (default auto)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="setting of the server"
    )
    return parser.parse_args()


def _measure(
    store: ModelStore,
    manifest: Manifest,
    artifact: Artifact,
    device: Device,
    given: argparse.Namespace,
) -> Iterator[Figure]:
    """Measures one figure for each protocol; returns none, and why, if no runtime supports it."""
    data = store.read_file(manifest, artifact.file)
    try:
        backend = open_backend(
            VerifiedArtifact(entry=artifact, signature=manifest.signature, data=data),
            OpenOptions(device=device),
        )
    except DeviceError as error:
        print(f"{manifest.model}, {artifact.name}: not measured: {error}")
        return
    inputs = read_golden(store, manifest).inputs
    limit = manifest.signature.max_batch_size
    best, rate = _best_size(backend, inputs, limit)
    rows = min(given.rows, limit)
    clients = min(max(BATCHES_IN_FLIGHT * best // rows, 8), MOST_CLIENTS)
    print(f"{manifest.model}, {artifact.name}: raw {rate:,.0f} samples/s at batch {best}")
    asked = golden_model(store, manifest)
    settings = (f"device={device}", f"processes={given.processes}", *given.set)
    with measured_server(store.url, [manifest.model], artifact.name, *settings) as server:
        lengths = check_answers(server, asked, artifact.name)
        for form in FORMS:
            ask = ask_for(asked, form, np.resize(asked.rows, (rows, *asked.rows.shape[1:])))
            answer_bytes = lengths[form] + (rows - 1) * asked.expected[:1].nbytes
            warm_up(server, form, ask, clients, answer_bytes)
            before = _samples_per_second(backend, inputs, best)
            page = read_metrics(server.metrics)
            load = closed_loop(server, form, ask, clients, given.seconds, answer_bytes)
            page = read_metrics(server.metrics).since(page)
            raw = mean((before, _samples_per_second(backend, inputs, best)))
            served = rows * load.answered / load.duration_s
            figure = Figure(
                model=manifest.model,
                artifact=artifact.name,
                form=form,
                rows=rows,
                settings=settings[1:],
                clients=clients,
                raw_samples_per_second=raw,
                best_batch_size=best,
                served_samples_per_second=served,
                ratio_to_raw=served / raw,
                p50_ms=load.p50_ms,
                p99_ms=load.p99_ms,
                failures=load.failed,
                batch_rows=page.mean_batch_rows(manifest.model),
                run_ms=1000 * page.mean(RUN),
                runs_at_once=page.total(f"{RUN}_sum") / load.duration_s,
                queue_ms=1000 * page.mean(QUEUE),
            )
            print(f"  {_line(figure)}", flush=True)
            yield figure
    backend.close()


def _best_size(backend: Backend, inputs: Mapping[str, Array], limit: int) -> tuple[int, float]:
    """Returns the power of two with the most samples a second, and that rate."""
    sizes = [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]
    rates = {size: _samples_per_second(backend, inputs, size) for size in sizes}
    best = max(rates, key=lambda size: rates[size])
    return best, rates[best]


def _samples_per_second(backend: Backend, inputs: Mapping[str, Array], rows: int) -> float:
    batch = {}
    for name, array in inputs.items():
        whole = np.resize(array, (rows, *array.shape[1:]))
        batch[name] = backend.buffer(name, whole.shape, whole.dtype)
        batch[name][...] = whole
    return rows * runs_per_second(backend, [batch], RAW_S)


def _load(figure: Figure) -> str:
    rows = "" if figure.rows == 1 else f" of {figure.rows} rows"
    return ", ".join((f"{figure.form}, {figure.clients} clients{rows}", *figure.settings))


def _line(figure: Figure) -> str:
    return (
        f"{_load(figure)}: {figure.served_samples_per_second:,.0f} "
        f"samples/s, {figure.ratio_to_raw:.3f} of raw, p50 {figure.p50_ms:.2f} ms, "
        f"p99 {figure.p99_ms:.2f} ms, failures {figure.failures}; {figure.batch_rows:.1f} rows a "
        f"batch, {figure.run_ms:.2f} ms a run, {figure.runs_at_once:.2f} runs at once, "
        f"{figure.queue_ms:.2f} ms in the queue"
    )


if __name__ == "__main__":
    main()
