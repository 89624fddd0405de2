"""The loaded lanes of this process: each a worker with its backends, within the device's memory.

In: versions to load and unload. Out: workers attached to the queue, and what the directory and
the metrics say of them.

Rules kept here: a version is announced ready only when its worker takes requests; one that does
not fit into memory is refused with the figures, or pushes out the idle version used longest ago
(`when_memory_full`); a version that leaves answers what it holds before its backends close.
"""

import asyncio
import dataclasses
import logging
from dataclasses import dataclass

from model_store.manifest import Artifact
from model_store.store import ModelStore
from services.inference.backends.device import Device
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.batcher import batch_rules
from services.inference.device_turns import DeviceTurns
from services.inference.latency import LatencyModel
from services.inference.loader import LoadedVersion, load_version
from services.inference.memory_admission import MemoryAdmission
from services.inference.policy import LanePolicy, ServingPolicy
from services.inference.worker import Worker, WorkerPlan
from services.queueing.directory import Directory
from services.queueing.lane_queue import LaneQueue
from services.queueing.records import Lane, ServedVersion
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.lanes")

SHARE_OF_DEVICE = 0.9
"""How much of a device's memory may be used when nothing else was said."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    worker: Worker
    device: Device
    served: ServedVersion
    task: asyncio.Task[None]
    """Ends when the worker's backends are closed."""


class Lanes:
    """Loads, starts and unloads lanes. Runs on the event loop; blocking work in threads."""

    def __init__(
        self,
        store: ModelStore,
        queue: LaneQueue,
        directory: Directory,
        metrics: Metrics,
        policy: ServingPolicy,
    ) -> None:
        self._store = store
        self._queue = queue
        self._directory = directory
        self._metrics = metrics
        self._policy = policy
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
        """The lanes that take requests: of one model, or all."""
        return [lane for lane in self._loaded if not model or lane.model == model]

    async def load(self, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        """Loads a version and starts its worker.

        Raises:
            LoadError: no artifact of it can be served here, or it does not fit.
            StoreError: its files are broken or out of reach.
        """
        async with self._one_at_a_time:
            await self._load(lane, self._policy.lane_of(lane.model), tasks)

    def abandon_runs(self) -> None:
        """Waits for no run any more; see `Worker.abandon_runs`."""
        loaded = [loaded.worker for loaded in self._loaded.values()]
        for worker in (*loaded, *self._draining.values()):
            worker.abandon_runs()

    def unload(self, lane: Lane) -> None:
        """Forgets a lane: no more requests are let in; what it holds is answered."""
        self._directory.withdraw(lane)
        if self._close(lane) is None and lane not in self._draining:  # it never loaded
            self._metrics.forget_lane(lane.model, lane.version)

    async def _load(self, lane: Lane, policy: LanePolicy, tasks: asyncio.TaskGroup) -> None:
        device = policy.load.device
        memory = await asyncio.to_thread(self._memory_of, device)
        manifest = await asyncio.to_thread(self._store.manifest, lane.model, lane.version)
        file_bytes = min(_size_bytes(artifact) for artifact in manifest.artifacts)
        leaving = self._make_room(memory, lane, memory.expected_bytes(lane, file_bytes))
        if leaving:
            # Memory that is freed meanwhile would pass for memory that this version did not take.
            await asyncio.wait(leaving)
        before = device_memory_bytes(device).used_bytes
        options = dataclasses.replace(policy.load, room_bytes=memory.room_bytes(lane))
        version = await asyncio.to_thread(load_version, self._store, manifest, options)
        own = sum(backend.process_bytes() for backend in version.backends)
        measured = max(device_memory_bytes(device).used_bytes - before, 0) + own
        taken = max(measured, _size_bytes(version.artifact))
        try:
            self._make_room(memory, lane, taken)
        except Exception:
            for backend in version.backends:
                await asyncio.to_thread(backend.close)
            raise
        memory.loaded(lane, taken)
        self._metrics.memory_bytes.labels(lane.model, str(lane.version)).set(taken)
        self._start(version, lane, policy, tasks)

    def _make_room(
        self, memory: MemoryAdmission, lane: Lane, need_bytes: int
    ) -> list[asyncio.Task[None]]:
        """Unloads idle versions for one that needs so much, or refuses it.

        Returns:
            A task for each version that leaves, which ends when its memory is free.
        """
        idle = [
            (loaded.worker.last_used_at, other)
            for other, loaded in self._loaded.items()
            if self._policy.unload_idle and loaded.worker.idle
        ]
        by_age = [other for _, other in sorted(idle, key=lambda pair: pair[0])]
        leaving = []
        for other in memory.to_unload(lane, need_bytes, by_age):
            logger.info(
                "unloading an idle version to make room",
                extra={"model": other.model, "version": other.version, "for": str(lane)},
            )
            closed = self._close(other)
            assert closed is not None
            leaving.append(closed.task)
            reason = f"unloaded to make room for model {lane}; being loaded again, so retry"
            self._directory.announce(ServedVersion(lane=other, state="unloaded", reason=reason))
        return leaving

    def _start(
        self, version: LoadedVersion, lane: Lane, policy: LanePolicy, tasks: asyncio.TaskGroup
    ) -> None:
        signature = version.manifest.signature
        plan = WorkerPlan(
            lane=lane,
            signature=signature,
            rules=batch_rules(
                signature,
                preferred_rows=policy.load.preferred_batch_sizes,
                wait_s=policy.batch_wait_s,
            ),
            latency=LatencyModel(signature.max_batch_size, version.latency_s, version.row_elements),
            backends=version.backends,
            reopen=version.reopen,
            execution_timeout_s=policy.execution_timeout_s,
        )
        device = policy.load.device
        if device not in self._turns:
            self._turns[device] = DeviceTurns(self._policy.slots(device))
        worker = Worker(plan, self._turns[device], self._metrics)
        served = ServedVersion(
            lane=lane,
            state="ready",
            signature=signature,
            platform=version.backends[0].platform,
            artifact=version.artifact.name,
        )
        task = tasks.create_task(worker.run(), name=f"worker {lane}")
        self._loaded[lane] = _Loaded(worker, device, served, task)
        task.add_done_callback(lambda _: self._forget(lane))
        labels = (lane.model, str(lane.version))
        self._metrics.queue_depth.labels(*labels).set_function(lambda: worker.waiting)
        self._metrics.model_ready.labels(*labels).set(1)
        self._metrics.load_seconds.labels(*labels).observe(version.load_s)
        self._queue.open(lane, worker)
        self._directory.announce(served)
        logger.info(
            "version ready",
            extra={"model": lane.model, "version": lane.version,
                   "artifact": version.artifact.name, "device": str(device),
                   "load_s": round(version.load_s, 3),
                   "golden_rows": version.manifest.golden.rows,
                   "max_abs_difference": version.parity.max_abs_difference,
                   "agreement": version.parity.agreement},
        )  # fmt: skip

    def _close(self, lane: Lane) -> _Loaded | None:
        """Lets no more requests in; the worker answers what it holds, then closes its backends."""
        loaded = self._loaded.pop(lane, None)
        if loaded is None:
            return None
        self._memory[loaded.device].unloaded(lane)
        self._draining[lane] = loaded.worker
        self._queue.close(lane, loaded.worker.close)
        return loaded

    def _forget(self, lane: Lane) -> None:
        self._draining.pop(lane, None)
        self._metrics.forget_lane(lane.model, lane.version)
        logger.info("version unloaded", extra={"model": lane.model, "version": lane.version})

    def _memory_of(self, device: Device) -> MemoryAdmission:
        memory = self._memory.get(device)
        if memory is None:
            used, total = device_memory_bytes(device)
            limit = self._policy.max_memory_bytes or int(total * SHARE_OF_DEVICE)
            memory = self._memory[device] = MemoryAdmission(limit, used)
        return memory


def _size_bytes(artifact: Artifact) -> int:
    """Of all its files."""
    return sum(entry.size_bytes for entry in artifact.all_files())
