"""The upper limit: the artifact in a loop on one thread, without a server.

Runs as a process of its own (`python -m bench.measured.raw_model STORE MODEL VERSION ARTIFACT`),
pinned to the server's core. For each input line, a batch size and seconds, it prints samples a
second.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bench.measured.golden_model import read_golden
from bench.peers.servers.flambeau_peer import ROOT
from bench.servers.measured_server import server_child
from flambeau.protocol.tensors import Array
from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


def raw_rates(
    store: ModelStore,
    manifest: Manifest,
    artifact: str,
    seconds: float,
    sizes: Sequence[int] = BATCH_SIZES,
) -> dict[int, float]:
    """Returns samples a second by batch size, measured by a process on the server's core.

    Args:
        store: model store of the version.
        manifest: manifest of the version.
        artifact: name of one of its artifacts.
        seconds: duration for each batch size.
        sizes: batch sizes; those above the model's largest batch are left out.
    """
    largest = manifest.signature.max_batch_size
    with raw_model(store, manifest, artifact) as rate:
        return {rows: rate(rows, seconds) for rows in sizes if rows <= largest}


@contextlib.contextmanager
def raw_model(
    store: ModelStore, manifest: Manifest, artifact: str
) -> Iterator[Callable[[int, float], float]]:
    """Keeps that process running for as long as the block lasts; it sleeps between measurements.

    Args:
        store: model store of the version.
        manifest: manifest of the version.
        artifact: name of one of its artifacts.

    Yields:
        A function from a batch size and seconds to samples a second.
    """
    argv = [sys.executable, "-m", "bench.measured.raw_model", store.url, manifest.model]
    argv += [str(manifest.version), artifact]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, text=True, preexec_fn=server_child(), cwd=ROOT
    )
    asked, told = process.stdin, process.stdout
    assert asked is not None
    assert told is not None

    def rate(rows: int, seconds: float) -> float:
        print(rows, seconds, file=asked, flush=True)
        return float(told.readline() or "nan")

    try:
        yield rate
    finally:
        process.communicate()


def open_artifact(store: ModelStore, manifest: Manifest, name: str) -> Backend:
    """Opens an artifact as the server does: one thread, on the CPU."""
    artifact = next(a for a in manifest.artifacts if a.name == name)
    data = store.read_file(manifest, artifact.file)
    return open_backend(
        VerifiedArtifact(entry=artifact, signature=manifest.signature, data=data), OpenOptions()
    )


def runs_per_second(backend: Backend, batches: Sequence[Mapping[str, Array]], s: float) -> float:
    """Runs the batches in whole rounds; returns batches a second."""
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
    parser = argparse.ArgumentParser(prog="python -m bench.measured.raw_model", description=__doc__)
    for name in ("store", "model", "version", "artifact"):
        parser.add_argument(name)
    given = parser.parse_args()
    store = ModelStore(given.store)
    manifest = store.manifest(given.model, int(given.version))
    backend = open_artifact(store, manifest, given.artifact)
    golden = read_golden(store, manifest)
    for line in sys.stdin:
        rows, seconds = int(line.split()[0]), float(line.split()[1])
        batch = {n: np.resize(a, (rows, *a.shape[1:])) for n, a in golden.inputs.items()}
        print(rows * runs_per_second(backend, [batch], seconds), flush=True)


if __name__ == "__main__":
    main()
