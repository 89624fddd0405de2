"""Loads one version: reads, checks, opens, replays and warms the fastest artifact that passes.

In: a store, a model and a version. Out: a backend proven on this machine, or the reasons why no
artifact is.

Rules kept here: a digest is checked before the bytes reach a runtime; kinds that are code load
from the local store only; an artifact serves only after the golden inputs gave the golden outputs
here, within the tolerance in the manifest.
"""

import logging
import time
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load as load_safetensors

from model_store.errors import StoreError
from model_store.golden import GoldenRows, golden_rows
from model_store.manifest import CODE_KINDS, Artifact, Manifest
from model_store.parity import Parity, compare
from model_store.store import ModelStore
from model_store.tensors import Array
from services.inference.backends.backend import Backend, open_backend

logger = logging.getLogger("flambeau.loader")

WARM_UP_ROWS = (1, 8, 32)
"""Batch sizes run once before traffic, so that no caller pays for lazy set-up."""

UNSERVABLE_DATATYPES = frozenset({"BF16", "BYTES"})
"""Datatypes that the present backends cannot take as NumPy arrays."""


class LoadError(Exception):
    """No artifact of the version can be served here; the message has a reason for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """A version ready to run."""

    manifest: Manifest
    artifact: Artifact
    backend: Backend
    parity: Parity
    """What the replay on this machine measured."""
    load_s: float


def load_version(
    store: ModelStore, model: str, version: int, threads: int, artifact_name: str = ""
) -> LoadedVersion:
    """Loads the fastest artifact that passes, or the named one.

    Args:
        store: where the version lies.
        model: its model.
        version: its number.
        threads: CPU threads a run may use.
        artifact_name: the only artifact to consider; empty for all, fastest first.

    Raises:
        LoadError: no artifact passes; nothing is kept open.
        StoreError: the manifest or the golden file is broken or out of reach.
    """
    started = time.monotonic()
    manifest = store.manifest(model, version)
    golden = golden_rows(load_safetensors(store.read_file(manifest, manifest.golden.file)))
    reasons: list[str] = []
    for artifact in _candidates(manifest, artifact_name):
        try:
            backend, parity = _open_and_prove(store, manifest, artifact, golden, threads)
        except Exception as error:  # a runtime may raise anything on a file it cannot run
            reason = str(error) if isinstance(error, StoreError | LoadError) else repr(error)
            reasons.append(f"artifact {artifact.name}: {reason}")
            logger.warning(
                "artifact refused",
                extra={"model": model, "version": version, "artifact": artifact.name,
                       "reason": reason},
            )  # fmt: skip
        else:
            return LoadedVersion(
                manifest=manifest,
                artifact=artifact,
                backend=backend,
                parity=parity,
                load_s=time.monotonic() - started,
            )
    raise LoadError("; ".join(reasons))


def replay(backend: Backend, golden: GoldenRows, max_batch_size: int) -> Parity:
    """Runs the golden inputs, in full batches and one row alone, and compares the outputs.

    Args:
        backend: what to prove.
        golden: what to run, and what it must give.
        max_batch_size: the most rows to run at once.
    """
    rows = golden.rows
    parts = [(0, 1), *((i, min(i + max_batch_size, rows)) for i in range(0, rows, max_batch_size))]
    found = [_run_rows(backend, golden, start, stop) for start, stop in parts]
    joined = {n: np.concatenate([part[n] for part in found]) for n in golden.outputs}
    right = {
        n: np.concatenate([a[start:stop] for start, stop in parts])
        for n, a in golden.outputs.items()
    }
    return compare(right, joined)


def _candidates(manifest: Manifest, artifact_name: str) -> list[Artifact]:
    if not artifact_name:
        return manifest.artifacts_by_speed()
    chosen = [a for a in manifest.artifacts if a.name == artifact_name]
    if not chosen:
        names = ", ".join(a.name for a in manifest.artifacts)
        raise LoadError(f"it has no artifact '{artifact_name}'; it has: {names}")
    return chosen


def _open(store: ModelStore, manifest: Manifest, artifact: Artifact, threads: int) -> Backend:
    if artifact.kind in CODE_KINDS and not store.is_local:
        raise LoadError(
            f"{artifact.kind} is code and {store.url} is not local; pull the version to this "
            "machine if you trust it, or serve its ONNX artifact"
        )
    specs = (*manifest.signature.inputs, *manifest.signature.outputs)
    for spec in specs:
        if spec.datatype in UNSERVABLE_DATATYPES:
            raise LoadError(f"tensor '{spec.name}' is {spec.datatype}, which no backend here takes")
    data = store.read_file(manifest, artifact.file)
    return open_backend(artifact, data, manifest.signature, threads)


def _open_and_prove(
    store: ModelStore,
    manifest: Manifest,
    artifact: Artifact,
    golden: GoldenRows,
    threads: int,
) -> tuple[Backend, Parity]:
    backend = _open(store, manifest, artifact, threads)
    try:
        parity = replay(backend, golden, manifest.signature.max_batch_size)
        if failure := parity.failure(artifact.verification.tolerance):
            raise LoadError(f"replaying the golden inputs on this machine: {failure}")
        _warm_up(backend, golden, manifest.signature.max_batch_size)
    except BaseException:
        backend.close()
        raise
    return backend, parity


def _warm_up(backend: Backend, golden: GoldenRows, max_batch_size: int) -> None:
    for count in (*WARM_UP_ROWS, max_batch_size):
        if count <= min(golden.rows, max_batch_size):
            _run_rows(backend, golden, 0, count)


def _run_rows(backend: Backend, golden: GoldenRows, start: int, stop: int) -> dict[str, Array]:
    return backend.run({name: array[start:stop] for name, array in golden.inputs.items()})
