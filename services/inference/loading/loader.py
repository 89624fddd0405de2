"""Loads one version: reads, checks, opens, replays and warms up the fastest artifact that passes.

The fastest is this machine's cached choice (`artifact_choice.py`), or else the publisher's:
`background_choice.py` measures afterwards, while it serves.

In: a store, a model and a version. Out: a backend verified on this machine, or the reasons why no
artifact passes.

Rules: a digest is checked before the bytes reach a runtime; kinds that are code load only from the
local store, or if signed by a trusted key; an artifact serves only after a replay of the
golden rows on this machine agreed with their outputs, within the tolerance in the manifest.
"""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flambeau.protocol.accuracies import Accuracy
from flambeau.protocol.row_form import in_rows
from model_store.arrays.golden_replay import replay_once
from model_store.arrays.parity import Parity, first_failure
from model_store.arrays.sequence_replay import replay_in_steps
from model_store.errors import StoreError
from model_store.golden import MAX_GOLDEN_BYTES, GoldenRows, read_golden
from model_store.manifest import Artifact, Manifest
from model_store.store import ModelStore
from services.errors import BackendError, WorkerProcessDiedError
from services.inference.backends.artifact_fit import UnfitArtifactError, check_fit
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.isolation.probe import ProbeFiles
from services.inference.loading.artifact_choice import ChoiceRules, choice_key, ranked
from services.inference.loading.artifact_files import read_artifact
from services.inference.loading.artifact_needs import ArtifactNeeds, UnprobedError
from services.inference.loading.choice_memory import ChoiceMemory
from services.inference.loading.kept_artifacts import is_accurate
from services.inference.loading.warm_up import load_budget_s, warm_up, with_certificate
from services.inference.trust import Trust
from services.low_priority_thread import NICENESS, run_at_low_priority

logger = logging.getLogger("flambeau.loader")


class LoadError(Exception):
    """No artifact of the version can be served here; the message has a reason for each.

    Args:
        message: the reasons.
        failed_replays: number of artifacts that ran and missed their tolerance.
    """

    def __init__(self, message: str, failed_replays: int = 0) -> None:
        super().__init__(message)
        self.failed_replays = failed_replays


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options for running a version."""

    backend: OpenOptions = field(default_factory=OpenOptions)
    """Options of each backend."""
    instances: int = 1
    """Number of backends to open, each with its own thread."""
    overlaps: bool = True
    """True to add a twin to each backend that offers one, so that its batches overlap."""
    isolate: bool = False
    """True to run each backend in its own worker process."""
    artifact: str = ""
    """The only artifact to consider; empty for all, fastest first."""
    accuracy: Accuracy = "fast"
    """Required accuracy of an artifact, unless one is named."""
    keep: tuple[str, ...] = ()
    """Further artifacts to load: names, accuracies or `all`; `load_version` does not load them."""
    choice: ChoiceRules = field(default_factory=ChoiceRules)
    """Settings of the choice of the fastest artifact."""
    room_bytes: int = 0
    """Free memory: larger artifacts are not measured; 0 if unknown."""
    trust: Trust = field(default_factory=Trust)
    """Required signatures and trusted keys."""
    needs: ArtifactNeeds | None = None
    """Known memory and time needs; None opens artifacts without a probe."""
    open_time_limit_s: float | None = None
    """Time limit of opening a worker process, and of its golden rows; None for that of `needs`."""
    niceness: int = NICENESS
    """Steps of niceness of the load, because the server is serving meanwhile; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """A version ready to run."""

    manifest: Manifest
    artifact: Artifact
    backends: list[Backend]
    reopen: Callable[[], Backend]
    """Opens and verifies another backend; raises the same errors as `load_version`."""
    parity: Parity
    """Result of the replay on this machine."""
    latency_s: dict[int, float]
    """Seconds of one run by batch size, measured here as far as the warm-up went."""
    row_elements: int
    """Input elements of the rows of that measurement."""
    load_s: float
    row_ms: Mapping[str, float]
    """Milliseconds per row of the artifacts that were measured against each other, by name."""
    is_chosen: bool = True
    """True if no measurement is due: it was done, is disabled, or there is only one artifact."""
    failed_replays: int = 0
    """Number of artifacts tried before that ran and missed their tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The artifacts of a version that may be served here."""

    fitting: list[Artifact]
    """Artifacts that this machine can run, in the publisher's order; all of them are measured."""
    unfit: list[Artifact]
    """Wanted artifacts that it cannot run: tried last, to report the reason."""
    wanted: Callable[[Artifact], bool]
    """Returns True if an artifact may serve by default."""
    key: str
    """Cache key of a choice among them."""

    def are_measured(self, options: LoadOptions) -> bool:
        """Returns True if there are several artifacts, and measuring is enabled."""
        return options.choice.budget_s > 0 and len(self.fitting) > 1


@dataclass(frozen=True, slots=True)
class _Verified:
    backend: Backend
    parity: Parity
    latency_s: dict[int, float]


def load_version(store: ModelStore, manifest: Manifest, options: LoadOptions) -> LoadedVersion:
    """Loads the fastest artifact that passes, or the named one.

    Args:
        store: store of the version.
        manifest: manifest of the version.
        options: options to run it with.

    Raises:
        LoadError: no artifact passes; nothing is kept open.
        UnprobedError: an artifact must be probed first, see `ArtifactNeeds`; nothing is kept open.
        StoreError: the golden file is invalid, does not match the signature, or is unavailable.
    """
    started = time.monotonic()
    golden = read_golden(store, manifest)
    reasons: list[str] = []
    failed_replays = 0
    found = candidates_of(manifest, options)
    memory = ChoiceMemory(options.choice.file)
    choice = memory.recall(found.key) if found.are_measured(options) else None
    order = ranked(found.fitting, choice, found.wanted)
    for artifact in [*order.artifacts, *found.unfit]:
        open_one = functools.partial(_open_and_verify, store, manifest, artifact, golden, options)
        verified: list[_Verified] = []
        try:
            verified.extend(open_one() for _ in range(options.instances))
        except UnprobedError:  # raised by the first instance, so none is open yet
            raise
        except Exception as error:  # a runtime may raise anything on a file it cannot run
            for one in verified:
                one.backend.close()
            is_known = isinstance(error, StoreError | LoadError | BackendError)
            reason = str(error) if is_known else repr(error)
            reasons.append(f"artifact {artifact.name}: {reason}")
            failed_replays += error.failed_replays if isinstance(error, LoadError) else 0
            logger.warning(
                "artifact refused",
                extra={"model": manifest.model, "version": manifest.version,
                       "artifact": artifact.name,
                       "reason": reason},
            )  # fmt: skip
            memory.forget(found.key)
            choice = None
            continue
        backends = [one.backend for one in verified]
        return LoadedVersion(
            manifest=manifest,
            artifact=artifact,
            backends=[*backends, *_twins(backends, manifest, artifact, golden, options)],
            reopen=lambda open_one=open_one: open_one().backend,  # type: ignore[misc]
            parity=verified[0].parity,
            latency_s=verified[0].latency_s,
            row_elements=sum(array[:1].size for array in golden.inputs.values()),
            load_s=time.monotonic() - started,
            row_ms=order.row_ms,
            is_chosen=choice is not None or not found.are_measured(options),
            failed_replays=failed_replays,
        )
    raise LoadError("; ".join(reasons), failed_replays)


def fitting(manifest: Manifest, options: LoadOptions) -> list[Artifact]:
    """Returns the artifacts that this machine can run, the publisher's fastest first."""
    return [a for a in manifest.artifacts_by_speed() if _misfit(a, options) is None]


def candidates_of(manifest: Manifest, options: LoadOptions) -> Candidates:
    """Returns the artifacts that may be served here.

    Raises:
        LoadError: no artifact has the requested name or accuracy.
    """
    artifacts = _named(manifest, options.artifact)

    def wanted(artifact: Artifact) -> bool:
        return bool(options.artifact) or is_accurate(manifest, artifact, options.accuracy)

    if not any(map(wanted, artifacts)):
        names = ", ".join(f"{a.name} ({a.precision})" for a in artifacts)
        raise LoadError(
            f"none of its artifacts is {options.accuracy} (accuracy={options.accuracy}); it has: "
            f"{names}; publish one, or set another accuracy"
        )
    if not options.keep:  # the others need not be measured
        artifacts = [artifact for artifact in artifacts if wanted(artifact)]
    fitting = [artifact for artifact in artifacts if _fits(artifact, manifest, options)]
    return Candidates(
        fitting=fitting,
        unfit=[a for a in artifacts if a not in fitting and wanted(a)],
        wanted=wanted,
        key=choice_key(manifest, fitting, options.backend),
    )


def _named(manifest: Manifest, artifact_name: str) -> list[Artifact]:
    if not artifact_name:
        return manifest.artifacts_by_speed()
    chosen = [a for a in manifest.artifacts if a.name == artifact_name]
    if not chosen:
        names = ", ".join(a.name for a in manifest.artifacts)
        raise LoadError(f"it has no artifact '{artifact_name}'; it has: {names}")
    return chosen


def _fits(artifact: Artifact, manifest: Manifest, options: LoadOptions) -> bool:
    """Returns True if this machine can run it and has room for it: the others are tried last."""
    misfit = _misfit(artifact, options)
    if misfit is not None:
        _log_misfit(manifest.model, manifest.version, artifact.name, str(misfit))
        return False
    return not options.room_bytes or artifact.size_bytes <= options.room_bytes


@functools.lru_cache(maxsize=4096)
def _log_misfit(model: str, version: int, artifact: str, reason: str) -> None:
    """Logs that an artifact cannot run here, only once: a version is examined several times."""
    logger.warning(
        "artifact cannot run here",
        extra={"model": model, "version": version, "artifact": artifact, "reason": reason},
    )


def _misfit(artifact: Artifact, options: LoadOptions) -> UnfitArtifactError | None:
    """Returns the reason why this machine cannot run an artifact; None if it can."""
    try:
        check_fit(artifact, options.backend.device)
    except UnfitArtifactError as error:
        return error
    return None


def _open(
    store: ModelStore, manifest: Manifest, artifact: Artifact, options: LoadOptions
) -> Backend:
    apart = runs_apart(artifact, options)
    if options.needs is not None and not apart:
        files = functools.partial(_probe_files, store, manifest, artifact, options)
        options.needs.check(manifest, artifact, options.backend, files)
    verified = read_artifact(store, manifest, artifact, options.backend.device, options.trust)
    if not apart:
        return open_backend(verified, options.backend)
    from services.inference.isolation.isolated_backend import OPEN_TIMEOUT_S, open_isolated_backend

    limit_s = _limit_s(options)
    return open_isolated_backend(
        verified,
        options.backend,
        memory_limit_bytes=memory_limit_bytes(artifact, options),
        timeout_s=OPEN_TIMEOUT_S if limit_s is None else limit_s,
    )


def _limit_s(options: LoadOptions) -> float | None:
    """Returns the time limit of opening an artifact in a worker process; None for no own limit."""
    if options.open_time_limit_s is not None or options.needs is None:
        return options.open_time_limit_s
    return options.needs.limit_s


def runs_apart(artifact: Artifact, options: LoadOptions) -> bool:
    """Returns True if an artifact runs in a worker process of its own."""
    python = artifact.python
    return options.isolate or (python is not None and python.process == "own")


def memory_limit_bytes(artifact: Artifact, options: LoadOptions) -> int:
    """Returns the memory limit of an artifact's worker process; 0 for no limit."""
    if options.needs is None or options.backend.device != CPU:
        return 0
    return options.needs.allowed_bytes(artifact)


def _probe_files(
    store: ModelStore, manifest: Manifest, artifact: Artifact, options: LoadOptions
) -> ProbeFiles:
    return ProbeFiles(
        golden=store.read_file(manifest, manifest.golden.file, MAX_GOLDEN_BYTES),
        artifact=read_artifact(store, manifest, artifact, options.backend.device, options.trust),
    )


def _open_and_verify(
    store: ModelStore,
    manifest: Manifest,
    artifact: Artifact,
    golden: GoldenRows,
    options: LoadOptions,
) -> _Verified:
    # If a run happens only in the calling thread, that thread may have low priority, and its CPU
    # time is the run's, regardless of other work on the core.
    alone = options.backend.runs_in_the_calling_thread and not runs_apart(artifact, options)
    clock = time.thread_time if alone else time.monotonic

    def open_and_verify() -> _Verified:
        backend = _open(store, manifest, artifact, options)
        try:
            with _limited(backend, artifact, options):
                parity = replay_golden(backend, golden, manifest, artifact)
                budget_s = load_budget_s(options.backend.device)
                latency_s = warm_up(backend, golden, manifest.signature, clock, budget_s=budget_s)
        except BaseException:
            backend.close()
            raise
        return _Verified(backend, parity, with_certificate(latency_s, artifact.latency_ms))

    if alone and options.niceness:
        return run_at_low_priority(open_and_verify, options.niceness)
    return open_and_verify()


def _twins(
    backends: list[Backend],
    manifest: Manifest,
    artifact: Artifact,
    golden: GoldenRows,
    options: LoadOptions,
) -> list[Backend]:
    """Returns a verified twin of each backend that has one, and memory for it."""
    twins: list[Backend] = []
    for backend in backends if options.overlaps else ():
        twin = backend.twin()
        if twin is None:
            continue
        try:
            replay_golden(twin, golden, manifest, artifact)
            budget_s = load_budget_s(options.backend.device)
            warm_up(twin, golden, manifest.signature, time.monotonic, budget_s=budget_s)
        except Exception as error:  # as in a load: a runtime may raise anything
            twin.close()
            logger.warning(
                "its batches do not overlap",
                extra={"model": manifest.model, "version": manifest.version, "reason": str(error)},
            )
            continue
        twins.append(twin)
    return twins


@contextlib.contextmanager
def _limited(backend: Backend, artifact: Artifact, options: LoadOptions) -> Iterator[None]:
    """Kills a worker process that takes too long; artifacts that run here were probed before."""
    limit_s = _limit_s(options)
    if limit_s is None or not runs_apart(artifact, options):
        yield
        return
    late = threading.Event()

    def end() -> None:
        late.set()
        backend.kill()

    timer = threading.Timer(limit_s, end)
    timer.start()
    try:
        yield
    except WorkerProcessDiedError as error:
        if not late.is_set():
            raise
        raise LoadError(
            f"running its golden rows takes more than {limit_s:g} s (open_time_limit_s); raise the "
            "limit, or serve another artifact"
        ) from error
    finally:
        timer.cancel()


def replay_golden(
    backend: Backend, golden: GoldenRows, manifest: Manifest, artifact: Artifact
) -> Parity:
    """Replays the golden rows.

    Raises:
        LoadError: the outputs differ from the golden ones by more than the artifact's tolerance.
    """
    tolerance = artifact.verification.tolerance
    where, signature = "replaying the golden rows on this machine", manifest.signature
    run, rows = in_rows(backend.run, signature), signature.max_batch_size
    parity = replay_once(where, run, golden, rows, tolerance.single_gates).parity
    failure = parity.failure(tolerance)
    if failure is None:
        steps = replay_in_steps(run, golden, signature, tolerance.single_gates)
        failure = first_failure(steps, tolerance)
    if failure is not None:
        raise LoadError(f"{where}: {failure}", 1)
    return parity
