"""Certifies a version on this machine: every artifact, each in a separate process.

In: a store, a version, the options to run it with. Out: a certificate.

Rules: the digest of every file is checked, also of artifacts that cannot run here; no artifact is
opened that a server with the same trusted keys would not open; the backend is the one that serves,
in a process whose crash has no effect, with limits on its time and memory; an artifact that this
machine cannot run counts as not run, not as failed. (`loader.py` checks less, but more often: it
verifies the artifact that it is about to serve.)
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import Protocol

from flambeau.protocol.row_form import Run, in_rows
from model_store.arrays.golden_replay import gives_the_same_twice, replay_everything
from model_store.arrays.parity import Comparison, first_failure
from model_store.certificates.certificate import (
    ArtifactResult,
    Certificate,
    Outcome,
    ReplayResult,
)
from model_store.certificates.certificates import manifest_sha256
from model_store.errors import PipelinePartError, SignatureMismatchError, StoreError
from model_store.golden import GoldenRows, read_golden
from model_store.host.memory_limit import GIB
from model_store.manifest import Artifact, Manifest
from model_store.store import ModelStore
from services.errors import BackendError, DeviceError
from services.inference.backends.artifact_fit import UnfitArtifactError
from services.inference.backends.device import CPU
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.environment import environment
from services.inference.isolation.isolated_backend import IsolatedBackend, open_isolated_backend
from services.inference.loading.artifact_files import check_servable, read_files
from services.inference.loading.warm_up import warm_up
from services.inference.trust import Trust

TIME_LIMIT_S, MEMORY_GIB = 300.0, 16.0
"""Default limits of one artifact; the memory is as for exports."""
SHARE_OF_FREE = 0.9
"""Share of the free memory that an artifact may take: a container that is out of memory may be
killed as a whole, not its largest process only."""
LATENCY_RUNS = 3
"""Measured runs of each batch size: the fastest counts."""
LATENCY_BUDGET_S = 1.0
"""Time budget for measuring the latency of one artifact."""

Progress = Callable[[str, int, int], None]
"""Receives the name of the artifact that starts, and the numbers of finished and all artifacts."""


class Judge(Protocol):
    """Has further rows, with the checkpoint's outputs, that the version itself does not contain."""

    def judge(
        self, run: Run, artifact: Artifact
    ) -> tuple[list[Comparison], dict[str, float], str | None]:
        """Runs the rows through an artifact; raises the artifact's exceptions.

        Returns:
            Comparisons with the checkpoint; task metrics; and the reason why the metrics refuse the
            artifact, or None.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyOptions:
    """Options to run a version with, and its resource limits."""

    backend: OpenOptions = field(default_factory=OpenOptions)
    """Options of each artifact's backend."""
    trust: Trust = field(default_factory=Trust)
    time_limit_s: float = TIME_LIMIT_S
    """Time limit of one artifact, once it is open."""
    memory_limit_bytes: int = int(MEMORY_GIB * GIB)
    """Memory limit of its process, which also gets no more than `SHARE_OF_FREE`."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One version being certified."""

    store: ModelStore
    manifest: Manifest
    golden: GoldenRows
    options: CertifyOptions
    judge: Judge | None


class _NotRunError(Exception):
    """This machine cannot, or may not, run the artifact; the message has the reason."""


def certify(
    store: ModelStore,
    manifest: Manifest,
    options: CertifyOptions,
    progress: Progress | None = None,
    judge: Judge | None = None,
) -> Certificate:
    """Certifies every artifact of a version on this machine.

    Args:
        store: store of the version.
        manifest: manifest of the version.
        options: options and limits of the runs.
        progress: callback at the start of each artifact.
        judge: source of further rows; None to use only the golden ones.

    Raises:
        GoldenMismatchError: the golden rows do not match the signature.
        PipelinePartError: it is a pipeline, which has no artifacts.
        StoreError: the golden file is invalid or unavailable.
    """
    if manifest.pipeline is not None:
        raise PipelinePartError(
            f"{manifest.model} {manifest.version} is a pipeline, whose outputs every server "
            "compares at each load; verify its models: "
            f"{', '.join(manifest.pipeline.graph.models())}"
        )
    golden = read_golden(store, manifest)
    case = _Case(store, manifest, golden, options, judge)
    results = []
    for done, artifact in enumerate(manifest.artifacts):
        if progress:
            progress(artifact.name, done, len(manifest.artifacts))
        results.append(_certified(case, artifact))
    return Certificate(
        model=manifest.model,
        version=manifest.version,
        manifest_sha256=manifest_sha256(store, manifest),
        flambeau=metadata.version("flambeau"),
        made_at=datetime.now(UTC),
        environment=environment(options.backend.device, options.backend.threads),
        artifacts=tuple(results),
    )


def _certified(case: _Case, artifact: Artifact) -> ArtifactResult:
    """Returns the result of one artifact, whether it passed, failed or was not run."""
    try:
        verified = read_files(case.store, case.manifest, artifact)
        _check_runs_here(case, artifact)
        backend = _opened(case, verified)
    except _NotRunError as error:
        return _unmeasured(artifact, "not run", str(error))
    except (StoreError, BackendError) as error:
        return _unmeasured(artifact, "failed", str(error))
    late = threading.Event()

    def end() -> None:
        late.set()
        backend.kill()

    limit = threading.Timer(case.options.time_limit_s, end)
    limit.start()
    try:
        return _verified(case, artifact, backend)
    except Exception as error:  # a runtime may raise anything on rows it cannot run
        reason = str(error) if isinstance(error, BackendError) else repr(error)
        if late.is_set():
            reason = f"it took longer than {case.options.time_limit_s:g} s"
        return _unmeasured(artifact, "failed", f"does not run: {reason}")
    finally:
        limit.cancel()
        backend.close()


def _check_runs_here(case: _Case, artifact: Artifact) -> None:
    """Checks that a server here would open it.

    Raises:
        _NotRunError: it would not, although the artifact has no fault.
        StoreError: the version does not match its signature.
    """
    try:
        case.options.trust.check(case.store, case.manifest, artifact)
        check_servable(case.manifest, artifact, case.options.backend.device)
    except SignatureMismatchError:
        raise
    except (StoreError, UnfitArtifactError) as error:
        raise _NotRunError(str(error)) from error


def _opened(case: _Case, verified: VerifiedArtifact) -> IsolatedBackend:
    options = case.options
    try:
        return open_isolated_backend(
            verified,
            options.backend,
            memory_limit_bytes=min(options.memory_limit_bytes, _free_bytes()),
        )
    except DeviceError as error:
        if options.backend.device == CPU or type(error) is not DeviceError:
            raise
        raise _NotRunError(str(error)) from error  # there is no such device here


def _free_bytes() -> int:
    used, total = device_memory_bytes(CPU)
    return max(int((total - used) * SHARE_OF_FREE), 1)


def _verified(case: _Case, artifact: Artifact, backend: IsolatedBackend) -> ArtifactResult:
    signature, options = case.manifest.signature, case.options
    tolerance = artifact.verification.tolerance
    run = in_rows(backend.run, signature)
    found = replay_everything(run, case.golden, signature, tolerance.single_gates)
    more, metrics, refusal = case.judge.judge(run, artifact) if case.judge else ([], {}, None)
    found += more
    repeats = gives_the_same_twice(run, case.golden, signature.max_batch_size)
    # The process's CPU time is that of the run, regardless of other work on the core.
    own_time = options.backend.runs_in_the_calling_thread
    latency_s = warm_up(
        backend,
        case.golden,
        signature,
        backend.cpu_seconds if own_time else time.monotonic,
        repeats=LATENCY_RUNS,
        budget_s=LATENCY_BUDGET_S,
    )
    reason = (
        first_failure(found, tolerance)
        or (None if repeats else "two runs of the same rows gave different numbers")
        or refusal
    )
    return ArtifactResult(
        artifact=artifact.name,
        outcome="failed" if reason else "passed",
        reason=reason or "",
        tolerance=tolerance,
        replays=tuple(ReplayResult.of(one, tolerance) for one in found),
        repeats=repeats,
        metrics=metrics,
        latency_ms=_milliseconds(latency_s),
    )


def _unmeasured(artifact: Artifact, outcome: Outcome, reason: str) -> ArtifactResult:
    return ArtifactResult(
        artifact=artifact.name,
        outcome=outcome,
        reason=reason,
        tolerance=artifact.verification.tolerance,
    )


def _milliseconds(latency_s: Mapping[int, float]) -> dict[int, float]:
    return {rows: round(seconds * 1000, 4) for rows, seconds in latency_s.items()}
