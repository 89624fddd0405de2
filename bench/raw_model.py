"""The limit: the artifact in a loop, one thread, nothing around it.

Run as a process of its own (`python -m bench.raw_model STORE MODEL VERSION ARTIFACT`), pinned to
the server's core; prints samples a second by batch size as JSON.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from bench.golden_model import read_golden
from bench.pinning import SERVER_CORE, pinned_to
from model_store.manifest import Manifest
from model_store.store import ModelStore
from model_store.tensors import Array
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


def raw_rates(
    store: ModelStore,
    manifest: Manifest,
    artifact: str,
    seconds: float,
    sizes: Sequence[int] = BATCH_SIZES,
) -> dict[int, float]:
    """Samples a second by batch size, measured by a process on the server's core.

    Args:
        store: where the version lies.
        manifest: of the version.
        artifact: the name of one of its artifacts.
        seconds: for each batch size.
        sizes: those above the model's largest batch are left out.
    """
    command = [sys.executable, "-m", "bench.raw_model", store.url, manifest.model]
    command += [str(manifest.version), artifact]
    command += ["--seconds", str(seconds), "--sizes", ",".join(map(str, sizes))]
    pin = pinned_to(SERVER_CORE)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=pin).stdout
    return {int(rows): rate for rows, rate in json.loads(output).items()}


def open_artifact(store: ModelStore, manifest: Manifest, name: str) -> Backend:
    """Opens an artifact as the server would: one thread, on the CPU."""
    artifact = next(a for a in manifest.artifacts if a.name == name)
    data = store.read_file(manifest, artifact.file)
    return open_backend(artifact, data, manifest.signature, threads=1)


def runs_per_second(backend: Backend, batches: Sequence[Mapping[str, Array]], s: float) -> float:
    """Runs the batches round and round, whole rounds only; each counts as one run."""
    for batch in batches:
        backend.run(batch)
    runs, started = 0, time.perf_counter()
    while time.perf_counter() - started < s:
        for batch in batches:
            backend.run(batch)
        runs += len(batches)
    return runs / (time.perf_counter() - started)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.raw_model", description=__doc__)
    for name in ("store", "model", "version", "artifact"):
        parser.add_argument(name)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each batch size")
    parser.add_argument("--sizes", default=",".join(map(str, BATCH_SIZES)), metavar="N,N")
    given = parser.parse_args()
    store = ModelStore(given.store)
    manifest = store.manifest(given.model, int(given.version))
    backend = open_artifact(store, manifest, given.artifact)
    golden = read_golden(store, manifest)
    rates = {}
    for rows in map(int, given.sizes.split(",")):
        if rows <= manifest.signature.max_batch_size:
            batch = {n: np.resize(a, (rows, *a.shape[1:])) for n, a in golden.inputs.items()}
            rates[rows] = rows * runs_per_second(backend, [batch], given.seconds)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
