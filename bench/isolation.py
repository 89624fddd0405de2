"""Cost of process isolation for a batch: the tiny MLP in this process and isolated, in turns.

In: the bench store. Out: median latency of a batch and CPU time here and in the worker process,
for batches of 1 and 64. The figures include a copy into the backend's buffer.

    python -m bench.isolation
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np

from bench.figures.results_file import bench_store
from bench.measured.golden_model import BENCH_STORE, newest_manifest, read_golden, served_artifact
from flambeau.protocol.tensors import Array
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import open_isolated_backend

BATCH_SIZES = (1, 64)
ROUNDS = 11
RUNS = 300


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.isolation", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE))
    parser.add_argument("--model", default="tiny-mlp")
    given = parser.parse_args()
    store = bench_store(given.store)
    manifest = newest_manifest(store, given.model)
    name = served_artifact(manifest, "")
    artifact = next(a for a in manifest.artifacts if a.name == name)
    data = store.read_file(manifest, artifact.file)
    (spec,) = manifest.signature.inputs
    rows = read_golden(store, manifest).inputs[spec.name]
    started = time.perf_counter()
    isolated = open_isolated_backend(
        VerifiedArtifact(entry=artifact, signature=manifest.signature, data=data), OpenOptions()
    )
    print(f"{given.model}, {name}: worker process open in {time.perf_counter() - started:.2f} s")
    here = open_backend(
        VerifiedArtifact(entry=artifact, signature=manifest.signature, data=data), OpenOptions()
    )
    for size in BATCH_SIZES:
        batch = np.resize(rows, (size, *rows.shape[1:]))
        found: dict[str, list[tuple[float, float, float]]] = {"here": [], "isolated": []}
        for _ in range(ROUNDS):
            for how, backend in (("here", here), ("isolated", isolated)):
                found[how].append(_measure(backend, spec.name, batch, isolated.pid))
        for how, figures in found.items():
            latency, own, worker = (median(column) for column in zip(*figures, strict=True))
            print(
                f"batch {size:>2}, {how:>8}: {latency:>4.0f} µs, CPU {own:.0f} µs here and "
                f"{worker:.0f} µs in the worker"
            )
    print(f"the worker process holds {isolated.process_bytes() / 2**20:.0f} MiB")
    isolated.close()
    here.close()


def _measure(backend: Backend, name: str, batch: Array, worker: int) -> tuple[float, float, float]:
    """Returns µs for each batch: median latency, CPU of this process, CPU of the worker."""
    latencies = []
    own, others = time.process_time(), _cpu_s(worker)
    for _ in range(RUNS):
        started = time.perf_counter()
        buffer = backend.buffer(name, batch.shape, batch.dtype)
        buffer[...] = batch
        backend.run({name: buffer})
        latencies.append(time.perf_counter() - started)
    own, others = time.process_time() - own, _cpu_s(worker) - others
    return median(latencies) * 1e6, own / RUNS * 1e6, others / RUNS * 1e6


def _cpu_s(pid: int) -> float:
    """Returns the CPU time of a process's threads, from the scheduler's nanosecond counters."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


if __name__ == "__main__":
    main()
