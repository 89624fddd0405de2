"""The loaded lanes of this process: each a worker with its backends, within the device's memory.

In: versions to load and unload. Out: workers on the queue; entries of the directory; metrics.

Rules: a version is announced as ready only when its worker accepts requests; a version that does
not fit into memory is refused with the figures, or evicts the least recently used idle version
(`when_memory_full`); an unloaded version answers its remaining requests before its backends close.

If another artifact is measured faster here, a lane switches to it while it serves (`exchange`).
Further artifacts (`keep_artifacts`) have lanes that evict nothing and never affect the default.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from model_store.manifest import Artifact, Manifest
from model_store.store import ModelStore
from services.inference.backends.device import CPU, Device
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.loading.artifact_needs import UnprobedError
from services.inference.loading.kept_artifacts import kept_names, log_unknown
from services.inference.loading.load_turns import Load, LoadTurns
from services.inference.loading.loaded_lane import (
    LoadedLane,
    close_backends,
    execution_of,
    served_facts,
    served_version,
)
from services.inference.loading.loader import (
    LoadedVersion,
    LoadError,
    LoadOptions,
    fitting,
    load_version,
)
from services.inference.loading.memory_admission import MemoryAdmission
from services.inference.loading.model_failure import in_thread, reason_of
from services.inference.loading.policy import LanePolicy, ServingPolicy
from services.inference.scheduling.batch_rules import batch_rules
from services.inference.scheduling.device_turns import DeviceTurns
from services.inference.scheduling.latency import LatencyModel
from services.inference.scheduling.sequence_worker import worker_of
from services.inference.scheduling.worker import Worker, WorkerPlan
from services.low_priority_thread import NICENESS
from services.queueing.directory import Directory
from services.queueing.lane_queue import LaneQueue
from services.queueing.records import Lane, ServedVersion
from services.telemetry.metrics import Metrics
from services.tracing.tracer import Tracer

logger = logging.getLogger("flambeau.lanes")
T = TypeVar("T")

MAX_TRIES = 100
"""Maximum number of attempts in one load of a version, one for each artifact to probe."""
SHARE_OF_DEVICE = 0.9
"""Share of a device's memory that may be used by default."""


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
        self._loaded: dict[Lane, LoadedLane] = {}
        self._draining: dict[Lane, Worker] = {}
        self.drained: Callable[[Lane], None] = lambda _: None  # called when one of them has closed
        self._turns: dict[Device, DeviceTurns] = {}
        self._memory: dict[Device, MemoryAdmission] = {}
        self._load_turns = LoadTurns(len(os.sched_getaffinity(0)))

    def __contains__(self, lane: Lane) -> bool:
        """Returns True if a lane is loaded, or still draining."""
        return lane in self._loaded or lane in self._draining

    def row_s(self) -> dict[Lane, float]:
        """Returns by lane the seconds by which each waiting row delays the next; 0 if unknown."""
        return {lane: loaded.worker.row_s for lane, loaded in self._loaded.items()}

    def loaded(self, model: str = "") -> list[Lane]:
        """Returns the default lanes of the versions that accept requests: of one model, or all."""
        return [
            lane
            for lane in self._loaded
            if not lane.artifact and (not model or lane.model == model)
        ]

    def worker_of(self, lane: Lane) -> Worker | None:
        """Returns the worker of a lane; None if it is not loaded."""
        return None if (loaded := self._loaded.get(lane)) is None else loaded.worker

    async def load(
        self, manifest: Manifest, tasks: asyncio.TaskGroup, *, niceness: int = NICENESS
    ) -> None:
        """Loads a version and starts its worker.

        Args:
            manifest: manifest of the version.
            tasks: task group of its worker.
            niceness: steps of niceness of the load, if other models are served meanwhile.

        Raises:
            LoadError: no artifact of it can be served here, or it does not fit.
            StoreError: its files are invalid or unavailable.
        """
        lane = Lane(manifest.model, manifest.version)
        policy = self._policy.lane_of(lane.model).for_version(manifest)
        policy = replace(policy, load=replace(policy.load, niceness=niceness))
        log_unknown(manifest, policy.load.keep)
        file_bytes = min(artifact.size_bytes for artifact in manifest.artifacts)
        await self._once_tried(
            lane, file_bytes, policy, lambda load: self._load(load, manifest, policy, tasks)
        )

    async def load_kept(self, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        """Loads the further artifacts of a version that `keep_artifacts` names.

        An artifact that cannot be loaded is logged, and not retried until the version is reloaded.
        """
        policy = self._policy.lane_of(lane.model)
        while policy.load.keep and (further := self._next_kept(lane, policy)) is not None:
            file_bytes = self._artifact(further).size_bytes
            await self._once_tried(
                further, file_bytes, policy, lambda load: self._load_kept(load, policy, tasks)
            )

    async def _once_tried(
        self,
        lane: Lane,
        file_bytes: int,
        policy: LanePolicy,
        work: Callable[[Load], Awaitable[T]],
    ) -> T:
        """Loads a lane in its turn; a necessary probe runs outside the turn, and delays no load."""
        device = policy.load.backend.device

        def room() -> int:
            memory = self._memory.get(device)
            return memory.room_bytes(lane) if memory and device == CPU else 0

        for _ in range(MAX_TRIES):
            try:
                async with self._load_turns.turn(lane, file_bytes, room, policy.is_apart) as load:
                    return await work(load)
            except UnprobedError as error:
                assert policy.load.needs is not None
                await policy.load.needs.find_out(error.case)
        raise LoadError(f"the needs of its artifacts are unknown after {MAX_TRIES} tries")

    def next_unchosen(self) -> Lane | None:
        """Returns a version whose artifacts have not been compared by measuring, if any."""
        return next((lane for lane, loaded in self._loaded.items() if not loaded.is_chosen), None)

    def set_chosen(self, lane: Lane) -> None:
        """Marks a version as measured until it is loaded again."""
        self._loaded[lane] = replace(self._loaded[lane], is_chosen=True)

    def plan_of(self, lane: Lane) -> tuple[Manifest, LoadOptions]:
        """Returns the manifest of a loaded version, and the options that it runs with."""
        loaded, load = self._loaded[lane], self._policy.lane_of(lane.model).load
        room_bytes = self._memory[loaded.device].room_bytes(lane)
        return loaded.manifest, replace(load, room_bytes=room_bytes)

    async def exchange(
        self, lane: Lane, artifact: str, row_ms: Mapping[str, float], tasks: asyncio.TaskGroup
    ) -> bool:
        """Switches a version that is serving to another of its artifacts; no request fails.

        If that cannot be loaded, or does not fit beside the current one, this is logged, and the
        version remains unchanged.

        Args:
            lane: lane of the version.
            artifact: name of the other artifact.
            row_ms: milliseconds per row of the version's artifacts, as measured.
            tasks: task group of the workers.

        Returns:
            True if it was switched.
        """
        loaded = self._loaded.get(lane)
        if loaded is None:  # it was unloaded meanwhile
            return False
        self._loaded[lane] = loaded = replace(loaded, row_ms=row_ms)
        if loaded.facts.name == artifact:
            return False
        further = lane._replace(artifact=artifact)
        policy = self._policy.lane_of(lane.model)
        file_bytes = self._artifact(further).size_bytes
        opened = await self._once_tried(
            further, file_bytes, policy, lambda load: self._open_further(load, policy)
        )
        if opened is None:
            return False
        version, taken = opened
        present = self._loaded.get(lane)
        if present is None or present.worker is not loaded.worker:
            await close_backends(version)
            return False
        self._switch(lane, version, taken)
        if policy.load.keep:
            await self.load_kept(lane, tasks)
            self._close_unwanted(lane, policy)
        return True

    def abandon_runs(self) -> None:
        """Abandons all running batches; see `Worker.abandon_runs`."""
        for worker in (*(one.worker for one in self._loaded.values()), *self._draining.values()):
            worker.abandon_runs()

    def unload(self, lane: Lane) -> None:
        """Unloads a lane: it accepts no more requests, and answers the remaining ones."""
        self._directory.withdraw(lane)
        if not self._close(lane) and lane not in self._draining:  # it never loaded
            self._metrics.forget_lane(lane.model, lane.version)

    async def _load(
        self, load: Load, manifest: Manifest, policy: LanePolicy, tasks: asyncio.TaskGroup
    ) -> None:
        lane, device = load.lane, policy.load.backend.device
        memory = await self._memory_in_use(device)
        expected = memory.expected_bytes(lane, load.file_bytes)
        unloading = self._make_room(memory, lane, expected)
        with memory.loading(lane, expected):
            if unloading:
                # Memory that is freed during the load would be subtracted from this version's.
                await asyncio.wait(unloading)
                await self._memory_in_use(device)
            options = replace(policy.load, room_bytes=memory.room_bytes(lane))
            version, taken = await self._open(load, manifest, options)
            memory.loaded(lane, taken)  # if it does not fit, the next try knows its memory
        try:
            self._make_room(memory, lane, taken)
            self._start(version, lane, taken, policy, tasks)
        except Exception:
            if lane not in self._loaded:
                memory.unloaded(lane)
                await close_backends(version)
            raise

    def _artifact(self, further: Lane) -> Artifact:
        """Returns the artifact of a further lane of a loaded version."""
        artifacts = self._loaded[further.default].manifest.artifacts
        return next(a for a in artifacts if a.name == further.artifact)

    def _next_kept(self, lane: Lane, policy: LanePolicy) -> Lane | None:
        """Returns the next further lane of a version that is to be loaded."""
        loaded = self._loaded.get(lane)
        if loaded is None:
            return None
        lanes = self._kept_lanes(lane, loaded, policy)
        return next((further for further in lanes if further not in self), None)

    def _kept_lanes(self, lane: Lane, loaded: LoadedLane, policy: LanePolicy) -> list[Lane]:
        """Returns the lanes of the further artifacts to load beside the default one."""
        manifest = loaded.manifest
        candidates = [a for a in fitting(manifest, policy.load) if a.name not in loaded.refused]
        default = loaded.facts.name
        names = kept_names(manifest, policy.load.keep, default, candidates, loaded.row_ms)
        return [lane._replace(artifact=name) for name in names]

    async def _load_kept(self, load: Load, policy: LanePolicy, tasks: asyncio.TaskGroup) -> None:
        """Loads a further artifact of a version, if there is room for it."""
        lane, loaded = load.lane, self._loaded.get(load.lane.default)
        if lane in self:  # another task was first
            return
        opened = await self._open_further(load, policy)
        if opened is None:
            return
        version, taken = opened
        present = self._loaded.get(lane.default)
        if loaded is None or present is None or present.worker is not loaded.worker:
            await close_backends(version)
            return
        self._memory[present.device].loaded(lane, taken)
        self._start(version, lane, taken, policy, tasks)

    async def _open_further(
        self, load: Load, policy: LanePolicy
    ) -> tuple[LoadedVersion, int] | None:
        """Opens another artifact of a loaded version; logs a failure and returns None then."""
        lane, loaded = load.lane, self._loaded.get(load.lane.default)
        if loaded is None:  # it was unloaded meanwhile
            return None
        memory = self._memory[loaded.device]
        options = replace(policy.load, artifact=lane.artifact, room_bytes=memory.room_bytes(lane))
        version = None
        try:
            expected = memory.expected_bytes(lane, load.file_bytes)
            memory.to_unload(lane, expected, ())
            with memory.loading(lane, expected):
                version, taken = await self._open(load, loaded.manifest, options)
            memory.to_unload(lane, taken, ())
        except UnprobedError:
            raise
        except Exception as error:
            logger.error(
                "artifact not kept",
                extra={"model": lane.model, "version": lane.version, "artifact": lane.artifact,
                       "reason": reason_of(error)},
            )  # fmt: skip
            loaded.refused.add(lane.artifact)
            failed_replays = error.failed_replays if isinstance(error, LoadError) else 0
            self._metrics.failed_verifications.labels(lane.model, str(lane.version)).inc(
                failed_replays
            )
            if version is not None:
                await close_backends(version)
            return None
        return version, taken

    def _switch(self, lane: Lane, version: LoadedVersion, taken_bytes: int) -> None:
        """Runs every later batch of a version on a newly opened artifact."""
        loaded = self._loaded[lane]
        loaded.worker.replace_backends(
            version.backends, version.reopen, version.latency_s, version.row_elements
        )
        self._loaded[lane] = replace(
            loaded,
            facts=served_facts(version, lane),
            platform=version.backends[0].platform,
            is_decoupled=version.backends[0].gives_parts,
            taken_bytes=taken_bytes,
            execution=execution_of(version, self._policy.lane_of(lane.model)),
        )
        self._memory[loaded.device].loaded(lane, taken_bytes)
        self._record_memory(lane)
        self._announce(lane)

    def _close_unwanted(self, lane: Lane, policy: LanePolicy) -> None:
        """Closes further lanes that are not wanted beside the new default artifact."""
        loaded = self._loaded.get(lane)
        if loaded is None:
            return
        wanted = set(self._kept_lanes(lane, loaded, policy))
        for own in self._lanes_of(lane):
            if own.artifact and own not in wanted:
                self._close_lane(own)
        self._announce(lane)

    async def _open(
        self, load: Load, manifest: Manifest, options: LoadOptions
    ) -> tuple[LoadedVersion, int]:
        """Loads an artifact. Returns it, and the bytes of device memory that it took."""
        device = options.backend.device
        before = device_memory_bytes(device).used_bytes
        version = await in_thread(load_version, self._store, manifest, options)
        own = sum(backend.process_bytes() for backend in version.backends)
        grown = max(device_memory_bytes(device).used_bytes - before, 0)
        return version, max(int(grown * load.share) + own, version.artifact.size_bytes)

    def _make_room(
        self, memory: MemoryAdmission, lane: Lane, need_bytes: int
    ) -> list[asyncio.Task[None]]:
        """Unloads idle versions to make room for a lane that needs `need_bytes`, or refuses it.

        Returns:
            A task for each unloaded lane, which ends when its memory is free.
        """
        idle: list[tuple[float, list[Lane]]] = []
        for other in self.loaded() if self._policy.unload_idle else ():
            lanes = self._lanes_of(other)
            if all(own.worker.idle for own in lanes.values()):
                idle.append((max(own.worker.last_used_at for own in lanes.values()), [*lanes]))
        by_age = [own for _, lanes in sorted(idle) for own in lanes]
        unloading = []
        unloaded = memory.to_unload(lane, need_bytes, by_age)
        for other in dict.fromkeys(own.default for own in unloaded):
            logger.info(
                "unloading an idle version to make room",
                extra={"model": other.model, "version": other.version, "for": str(lane)},
            )
            unloading += [closed.task for closed in self._close(other)]
            reason = f"unloaded to make room for model {lane}; being loaded again, so retry"
            away = ServedVersion(lane=other, state="unloaded", reason=reason, comes_back=True)
            self._directory.announce(away)
        return unloading

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
            latency=LatencyModel(
                signature.max_batch_size,
                # Rows that only say that a model is ready tell nothing of the time of others.
                {} if version.artifact.folder else version.latency_s,
                version.row_elements,
            ),
            backends=version.backends,
            reopen=version.reopen,
            execution_timeout_s=policy.execution_timeout_s,
        )
        device = policy.load.backend.device
        if device not in self._turns:
            self._turns[device] = DeviceTurns(self._policy.slots(device))
        worker = worker_of(plan, self._turns[device], self._metrics, self._tracer)
        backend, facts = version.backends[0], served_facts(version, lane)
        task = tasks.create_task(worker.run(), name=f"worker {lane}")
        self._loaded[lane] = LoadedLane(
            worker, device, facts, backend.platform, backend.gives_parts, version.manifest,
            version.row_ms, task, taken_bytes, version.is_chosen or bool(lane.artifact),
            execution_of(version, policy),
        )  # fmt: skip
        task.add_done_callback(lambda _: self._forget(lane))
        labels = (lane.model, str(lane.version))
        self._record_memory(lane.default)
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

    def _record_memory(self, lane: Lane) -> None:
        taken = sum(own.taken_bytes for own in self._lanes_of(lane).values())
        self._metrics.memory_bytes.labels(lane.model, str(lane.version)).set(taken)

    def _announce(self, lane: Lane) -> None:
        """Announces the loaded artifacts of a version that is ready."""
        self._directory.announce(served_version(lane, self._lanes_of(lane)))

    def _lanes_of(self, lane: Lane) -> dict[Lane, LoadedLane]:
        """Returns the loaded lanes of a version, the default one first."""
        return {other: own for other, own in self._loaded.items() if other.default == lane}

    def _waiting(self, lane: Lane) -> int:
        """Returns the number of entries of a version that wait for a batch."""
        workers = {other: own.worker for other, own in self._loaded.items()} | self._draining
        return sum(worker.waiting for other, worker in workers.items() if other.default == lane)

    def _close(self, lane: Lane) -> list[LoadedLane]:
        """Stops admission to a version; its workers answer their requests and then close."""
        return [self._close_lane(own) for own in self._lanes_of(lane)]

    def _close_lane(self, lane: Lane) -> LoadedLane:
        loaded = self._loaded.pop(lane)
        self._memory[loaded.device].unloaded(lane)
        self._draining[lane] = loaded.worker
        self._queue.close(lane, loaded.worker.close)
        return loaded

    def _forget(self, lane: Lane) -> None:
        self._draining.pop(lane, None)
        self.drained(lane)
        if lane.artifact:  # the version's metrics remain as long as its default lane
            return
        self._metrics.forget_lane(lane.model, lane.version)
        logger.info("version unloaded", extra={"model": lane.model, "version": lane.version})

    async def _memory_in_use(self, device: Device) -> MemoryAdmission:
        """Returns the memory account of a device, updated with the current usage."""
        used, total = await asyncio.to_thread(device_memory_bytes, device)
        memory = self._memory.get(device)
        if memory is None:
            limit = self._policy.max_memory_bytes or int(total * SHARE_OF_DEVICE)
            memory = self._memory[device] = MemoryAdmission(limit, used)
        elif not self._draining and self._load_turns.is_quiet:  # no account has a draining lane's
            memory.in_use(used)
        return memory
