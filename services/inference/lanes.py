"""The loaded lanes of this process: each a worker with its backends, within the device's memory.

In: versions to load and unload. Out: workers attached to the queue, and what the directory and
the metrics say of them.

Rules kept here: a version is announced ready only when its worker takes requests; one that does
not fit into memory is refused with the figures, or pushes out the idle version used longest ago
(`when_memory_full`); a version that leaves answers what it holds before its backends close.

A version has a lane for the artifact that answers by default, and one for each further artifact
that `keep_artifacts` asks for. Those load after it, push nothing out, and leave with it; what
becomes of them never touches the version itself.
"""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from model_store.manifest import Artifact, Manifest
from model_store.store import ModelStore
from services.inference.artifact_needs import UnprobedError
from services.inference.backends.device import Device
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.batcher import batch_rules
from services.inference.device_turns import DeviceTurns
from services.inference.kept_artifacts import accuracy_loss, kept_names
from services.inference.latency import LatencyModel
from services.inference.loader import (
    LoadedVersion,
    LoadError,
    LoadOptions,
    fitting,
    load_version,
)
from services.inference.memory_admission import MemoryAdmission
from services.inference.model_failure import in_thread, told
from services.inference.policy import LanePolicy, ServingPolicy
from services.inference.warm_up import row_ms
from services.inference.worker import Worker, WorkerPlan
from services.queueing.directory import Directory
from services.queueing.lane_queue import LaneQueue
from services.queueing.records import Lane, ServedArtifact, ServedVersion
from services.telemetry.metrics import Metrics
from services.tracing.tracer import Tracer

logger = logging.getLogger("flambeau.lanes")

MAX_TRIES = 100
"""Of a version's artifacts, in one load."""
SHARE_OF_DEVICE = 0.9
"""How much of a device's memory may be used when nothing else was said."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    worker: Worker
    device: Device
    facts: ServedArtifact
    platform: str
    manifest: Manifest
    row_ms: Mapping[str, float]
    """Of the version's artifacts, as far as they were measured when this one was loaded."""
    task: asyncio.Task[None]
    """Ends when the worker's backends are closed."""
    taken_bytes: int
    refused: set[str] = field(default_factory=set)
    """Names of further artifacts that could not be loaded."""


class Lanes:
    """Loads, starts and unloads lanes. Runs on the event loop; blocking work in threads."""

    def __init__(
        self,
        store: ModelStore,
        queue: LaneQueue,
        directory: Directory,
        metrics: Metrics,
        policy: ServingPolicy,
        tracer: Tracer | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._directory = directory
        self._metrics = metrics
        self._policy = policy
        self._tracer = tracer
        self._loaded: dict[Lane, _Loaded] = {}
        self._draining: dict[Lane, Worker] = {}
        self._turns: dict[Device, DeviceTurns] = {}
        self._memory: dict[Device, MemoryAdmission] = {}
        self._one_at_a_time = asyncio.Lock()
        """Held while a version loads, so that what it takes is not charged to another."""

    def __contains__(self, lane: Lane) -> bool:
        """Whether a lane is loaded, or still finishing."""
        return lane in self._loaded or lane in self._draining

    def row_s(self) -> dict[Lane, float]:
        """By lane, seconds by which each row that waits delays the next; 0 if unknown."""
        return {lane: loaded.worker.row_s for lane, loaded in self._loaded.items()}

    def loaded(self, model: str = "") -> list[Lane]:
        """The default lanes of the versions that take requests: of one model, or all."""
        return [
            lane
            for lane in self._loaded
            if not lane.artifact and (not model or lane.model == model)
        ]

    async def load(self, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        """Loads a version and starts its worker.

        Raises:
            LoadError: no artifact of it can be served here, or it does not fit.
            StoreError: its files are broken or out of reach.
        """
        policy = self._policy.lane_of(lane.model)
        await self._once_tried(policy, functools.partial(self._load, lane, policy, tasks))

    async def load_kept(self, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        """Loads the further artifacts of a version that are to be kept and are not loaded yet.

        One that cannot be is logged, and left alone until the version is loaded again.
        """
        policy = self._policy.lane_of(lane.model)
        while policy.load.keep and (further := self._next_kept(lane, policy)) is not None:
            load = functools.partial(self._load_kept, further, policy, tasks)
            await self._once_tried(policy, load)

    async def _once_tried(self, policy: LanePolicy, load: Callable[[], Awaitable[None]]) -> None:
        """Loads in its turn. An artifact that must be tried first holds up nobody meanwhile."""
        for _ in range(MAX_TRIES):
            try:
                async with self._one_at_a_time:
                    return await load()
            except UnprobedError as error:
                assert policy.load.needs is not None
                await policy.load.needs.find_out(error.case)
        raise LoadError(f"what its artifacts take is not known after {MAX_TRIES} tries")

    def abandon_runs(self) -> None:
        """Waits for no run any more; see `Worker.abandon_runs`."""
        loaded = [loaded.worker for loaded in self._loaded.values()]
        for worker in (*loaded, *self._draining.values()):
            worker.abandon_runs()

    def unload(self, lane: Lane) -> None:
        """Forgets a lane: no more requests are let in; what it holds is answered."""
        self._directory.withdraw(lane)
        if not self._close(lane) and lane not in self._draining:  # it never loaded
            self._metrics.forget_lane(lane.model, lane.version)

    async def _load(self, lane: Lane, policy: LanePolicy, tasks: asyncio.TaskGroup) -> None:
        device = policy.load.backend.device
        memory = await self._memory_in_use(device)
        manifest = await in_thread(self._store.manifest, lane.model, lane.version)
        file_bytes = min(_size_bytes(artifact) for artifact in manifest.artifacts)
        leaving = self._make_room(memory, lane, memory.expected_bytes(lane, file_bytes))
        if leaving:
            # Memory that is freed meanwhile would pass for memory that this version did not take.
            await asyncio.wait(leaving)
            await self._memory_in_use(device)
        options = dataclasses.replace(policy.load, room_bytes=memory.room_bytes(lane))
        version, taken = await self._open(manifest, options)
        try:
            self._make_room(memory, lane, taken)
        except Exception:
            await _close_backends(version)
            raise
        memory.loaded(lane, taken)
        try:
            self._start(version, lane, taken, policy, tasks)
        except Exception:
            if lane not in self._loaded:
                memory.unloaded(lane)
                await _close_backends(version)
            raise

    def _next_kept(self, lane: Lane, policy: LanePolicy) -> Lane | None:
        """The next further artifact of a version that is to be loaded."""
        loaded = self._loaded.get(lane)
        if loaded is None:
            return None
        manifest = loaded.manifest
        candidates = [a for a in fitting(manifest, policy.load) if a.name not in loaded.refused]
        default = loaded.facts.name
        names = kept_names(manifest, policy.load.keep, default, candidates, loaded.row_ms)
        lanes = [lane._replace(artifact=name) for name in names]
        return next((further for further in lanes if further not in self), None)

    async def _load_kept(self, lane: Lane, policy: LanePolicy, tasks: asyncio.TaskGroup) -> None:
        """Loads a further artifact of a version, if there is room for it."""
        loaded = self._loaded.get(lane.default)
        if loaded is None:  # it was unloaded meanwhile
            return
        manifest, memory = loaded.manifest, self._memory[loaded.device]
        options = dataclasses.replace(
            policy.load, artifact=lane.artifact, room_bytes=memory.room_bytes(lane)
        )
        artifact = next(a for a in manifest.artifacts if a.name == lane.artifact)
        version = None
        try:
            memory.to_unload(lane, memory.expected_bytes(lane, _size_bytes(artifact)), ())
            version, taken = await self._open(manifest, options)
            memory.to_unload(lane, taken, ())
        except UnprobedError:
            raise
        except Exception as error:
            logger.error(
                "artifact not kept",
                extra={"model": lane.model, "version": lane.version, "artifact": lane.artifact,
                       "reason": told(error)},
            )  # fmt: skip
            loaded.refused.add(lane.artifact)
            failed_replays = error.failed_replays if isinstance(error, LoadError) else 0
            self._metrics.failed_verifications.labels(lane.model, str(lane.version)).inc(
                failed_replays
            )
        else:
            if self._loaded.get(lane.default) is loaded:
                memory.loaded(lane, taken)
                self._start(version, lane, taken, policy, tasks)
                return
        if version is not None:
            await _close_backends(version)

    async def _open(self, manifest: Manifest, options: LoadOptions) -> tuple[LoadedVersion, int]:
        """Loads an artifact. Returns it, and the bytes of its device that this took."""
        device = options.backend.device
        before = device_memory_bytes(device).used_bytes
        version = await in_thread(load_version, self._store, manifest, options)
        own = sum(backend.process_bytes() for backend in version.backends)
        measured = max(device_memory_bytes(device).used_bytes - before, 0) + own
        return version, max(measured, _size_bytes(version.artifact))

    def _make_room(
        self, memory: MemoryAdmission, lane: Lane, need_bytes: int
    ) -> list[asyncio.Task[None]]:
        """Unloads idle versions for one that needs so much, or refuses it.

        Returns:
            A task for each version that leaves, which ends when its memory is free.
        """
        idle: list[tuple[float, list[Lane]]] = []
        for other in self.loaded() if self._policy.unload_idle else ():
            parts = self._parts(other)
            if all(part.worker.idle for part in parts.values()):
                idle.append((max(part.worker.last_used_at for part in parts.values()), [*parts]))
        by_age = [part for _, parts in sorted(idle) for part in parts]
        leaving = []
        unloaded = memory.to_unload(lane, need_bytes, by_age)
        for other in dict.fromkeys(part.default for part in unloaded):
            logger.info(
                "unloading an idle version to make room",
                extra={"model": other.model, "version": other.version, "for": str(lane)},
            )
            leaving += [closed.task for closed in self._close(other)]
            reason = f"unloaded to make room for model {lane}; being loaded again, so retry"
            self._directory.announce(ServedVersion(lane=other, state="unloaded", reason=reason))
        return leaving

    def _start(
        self,
        version: LoadedVersion,
        lane: Lane,
        taken_bytes: int,
        policy: LanePolicy,
        tasks: asyncio.TaskGroup,
    ) -> None:
        signature = version.manifest.signature
        plan = WorkerPlan(
            lane=lane,
            signature=signature,
            rules=batch_rules(
                signature,
                preferred_rows=policy.load.backend.preferred_batch_sizes,
                wait_s=policy.batch_wait_s,
            ),
            latency=LatencyModel(signature.max_batch_size, version.latency_s, version.row_elements),
            backends=version.backends,
            reopen=version.reopen,
            execution_timeout_s=policy.execution_timeout_s,
        )
        device = policy.load.backend.device
        if device not in self._turns:
            self._turns[device] = DeviceTurns(self._policy.slots(device))
        worker = Worker(plan, self._turns[device], self._metrics, self._tracer)
        platform, facts = version.backends[0].platform, _facts(version, lane)
        task = tasks.create_task(worker.run(), name=f"worker {lane}")
        self._loaded[lane] = _Loaded(
            worker, device, facts, platform, version.manifest, version.row_ms, task,
            taken_bytes,
        )  # fmt: skip
        task.add_done_callback(lambda _: self._forget(lane))
        labels = (lane.model, str(lane.version))
        taken = sum(part.taken_bytes for part in self._parts(lane.default).values())
        self._metrics.memory_bytes.labels(*labels).set(taken)
        self._metrics.queue_depth.labels(*labels).set_function(lambda: self._waiting(lane.default))
        self._metrics.model_ready.labels(*labels).set(1)
        self._metrics.load_seconds.labels(*labels).observe(version.load_s)
        self._metrics.expect_lane(lane.model, lane.version)
        self._metrics.failed_verifications.labels(*labels).inc(version.failed_replays)
        self._queue.open(lane, worker)
        self._announce(lane.default)
        logger.info(
            "artifact kept" if lane.artifact else "version ready",
            extra={"model": lane.model, "version": lane.version,
                   "artifact": version.artifact.name, "device": str(device),
                   "load_s": round(version.load_s, 3),
                   "golden_rows": version.manifest.golden.rows,
                   "max_abs_difference": version.parity.max_abs_difference,
                   "agreement": version.parity.agreement},
        )  # fmt: skip

    def _announce(self, lane: Lane) -> None:
        """Says what is loaded of a version that is ready."""
        default = self._loaded[lane]
        self._directory.announce(
            ServedVersion(
                lane=lane,
                state="ready",
                signature=default.manifest.signature,
                platform=default.platform,
                artifact=default.facts.name,
                artifacts=tuple(part.facts for part in self._parts(lane).values()),
                semver=default.manifest.semver or "",
            )
        )

    def _parts(self, lane: Lane) -> dict[Lane, _Loaded]:
        """What is loaded of a version, by lane: its default one first."""
        return {other: part for other, part in self._loaded.items() if other.default == lane}

    def _waiting(self, lane: Lane) -> int:
        """Entries of a version that wait for a batch."""
        loaded = {other: part.worker for other, part in self._loaded.items()}
        workers = (loaded | self._draining).items()
        return sum(worker.waiting for other, worker in workers if other.default == lane)

    def _close(self, lane: Lane) -> list[_Loaded]:
        """Lets no more requests in; what a version's workers hold is answered, then they close."""
        parts = self._parts(lane)
        for part, loaded in parts.items():
            del self._loaded[part]
            self._memory[loaded.device].unloaded(part)
            self._draining[part] = loaded.worker
            self._queue.close(part, loaded.worker.close)
        return list(parts.values())

    def _forget(self, lane: Lane) -> None:
        self._draining.pop(lane, None)
        if lane.artifact:  # what is known of the version stays as long as its default lane
            return
        self._metrics.forget_lane(lane.model, lane.version)
        logger.info("version unloaded", extra={"model": lane.model, "version": lane.version})

    async def _memory_in_use(self, device: Device) -> MemoryAdmission:
        """The account of a device, with what is used now."""
        used, total = await asyncio.to_thread(device_memory_bytes, device)
        memory = self._memory.get(device)
        if memory is None:
            limit = self._policy.max_memory_bytes or int(total * SHARE_OF_DEVICE)
            memory = self._memory[device] = MemoryAdmission(limit, used)
        elif not self._draining:  # what leaves holds memory that is nobody's any more
            memory.in_use(used)
        return memory


async def _close_backends(version: LoadedVersion) -> None:
    for backend in version.backends:
        await asyncio.to_thread(backend.close)


def _facts(version: LoadedVersion, lane: Lane) -> ServedArtifact:
    """What gateways are told of an artifact."""
    artifact = version.artifact
    return ServedArtifact(
        name=artifact.name,
        precision=artifact.precision,
        accuracy_loss=accuracy_loss(version.manifest, artifact),
        row_ms=row_ms(version.latency_s),
        lane=lane,
    )


def _size_bytes(artifact: Artifact) -> int:
    """Of all its files."""
    return sum(entry.size_bytes for entry in artifact.all_files())
