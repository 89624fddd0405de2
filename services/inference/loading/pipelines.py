"""The pipelines that this process serves: their graphs, their lanes, and the versions they need.

In: manifests of pipelines, and the versions of this process. Out: a lane for each pipeline whose
parts are loaded here and which has given its golden outputs; entries of the directory; the versions
of other models to load.

Rules: a pipeline runs in the process that has its parts, which therefore loads them, too; it is
ready while each part has a loaded version in its range; before its first request the golden rows
run through the real parts, and where these answer as those that recorded the outputs (versions that
differ in the last number alone), the outputs are compared.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import replay_once, run_in_batches
from model_store.errors import StoreError
from model_store.golden import read_golden
from model_store.manifest import Manifest, PublishedPipeline
from model_store.pipelines.graph import INPUT, Part, Pipeline, refs_of
from model_store.pipelines.parts import answers_alike, newest
from model_store.store import ModelStore
from services.errors import ModelNotReadyError, ServingError
from services.inference.backends.device import CPU
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.loading.loader import LoadError
from services.inference.loading.model_failure import in_thread
from services.inference.loading.policy import ServingPolicy
from services.inference.pipelines.held_bytes import SHARE_OF_MEMORY, HeldBytes
from services.inference.pipelines.pipeline_lane import PipelineLane
from services.inference.pipelines.plan import Plan, Planner, WorkerOf
from services.inference.pipelines.step_gate import StepGates
from services.queueing.directory import Directory
from services.queueing.lane_queue import LaneQueue
from services.queueing.memory_queue import Entry, Outcome
from services.queueing.records import (
    PIPELINE_PLATFORM,
    Execution,
    InferRequest,
    Lane,
    PipelineStep,
    ServedVersion,
)
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.pipelines")

REPLAY_TIMEOUT_S = 60.0
"""Seconds in which the golden rows must run through all steps."""


@dataclass(slots=True)
class _Known:
    """A pipeline that should be served."""

    manifest: Manifest
    planner: Planner
    lane: PipelineLane
    unseen: set[str]
    """Models of its parts that have not converged since it was read."""
    is_open: bool = False
    """True once it accepts requests."""
    is_closed: bool = False
    """True once no more requests can come."""

    def close(self) -> None:
        """Notes that no more requests can come."""
        self.is_closed = True

    @property
    def pipeline(self) -> PublishedPipeline:
        assert self.manifest.pipeline is not None
        return self.manifest.pipeline


class Pipelines:
    """Loads and unloads pipelines. Runs on the event loop; blocking work in threads."""

    def __init__(
        self,
        store: ModelStore,
        queue: LaneQueue,
        directory: Directory,
        metrics: Metrics,
        policy: ServingPolicy,
        worker_of: WorkerOf,
    ) -> None:
        self._store, self._queue = store, queue
        self._directory, self._metrics = directory, metrics
        self._policy = policy
        self._worker_of = worker_of
        self._gates = StepGates(queue.max_depth)
        memory_bytes = device_memory_bytes(CPU).total_bytes
        self._held = HeldBytes(int(memory_bytes * SHARE_OF_MEMORY))
        self._known: dict[Lane, _Known] = {}
        self._draining: list[_Known] = []
        """Unloaded pipelines whose requests still run, and need their parts."""
        self._newest: dict[str, tuple[Sequence[int], int]] = {}
        """Newest version in a part's range, by its text, with the versions that were there."""
        self._semvers: dict[Lane, str] = {}
        self._has_news = False

    def __contains__(self, lane: Lane) -> bool:
        """Returns True if a pipeline is known here, open or not."""
        return lane in self._known

    def open_lanes(self, model: str = "") -> list[Lane]:
        """Returns the pipelines that accept requests: versions of one model, or all."""
        return [
            lane
            for lane, known in self._known.items()
            if known.is_open and (not model or lane.model == model)
        ]

    def awaits(self, lane: Lane, converging: Collection[str], there: Collection[str]) -> bool:
        """Returns True if a part of a pipeline may be loading, or about to be.

        Args:
            lane: lane of the pipeline.
            converging: models whose versions are being loaded.
            there: models of the store.
        """
        known = self._known[lane]
        parts = {step.part.model for step in known.pipeline.graph.steps}
        return any(model in converging for model in parts) or any(m in there for m in known.unseen)

    def models(self) -> list[str]:
        """Returns the models that the pipelines need."""
        return list(dict.fromkeys(part.model for part in self._parts()))

    def parts_of(self, model: str) -> list[str]:
        """Returns the models that the pipelines of a name run."""
        graphs = [k.pipeline.graph for lane, k in self._known.items() if lane.model == model]
        return list(dict.fromkeys(step.part.model for graph in graphs for step in graph.steps))

    def _parts(self) -> list[Part]:
        """Returns the parts of all pipelines that are served, or still have requests."""
        self._draining = [k for k in self._draining if not k.is_closed or k.lane.waiting]
        every = (*self._known.values(), *self._draining)
        return [step.part for known in every for step in known.pipeline.graph.steps]

    async def read(self, manifest: Manifest) -> None:
        """Reads a pipeline that should be served; `settle` opens it when its parts are there.

        Raises:
            StoreError: a required signature is missing.
        """
        lane = Lane(manifest.model, manifest.version)
        assert manifest.pipeline is not None
        trust = self._policy.lane_of(lane.model).load.trust
        await in_thread(trust.check_data, self._store, manifest)
        planner = Planner(
            manifest.pipeline.graph,
            manifest.signature,
            self._directory,
            self._worker_of,
            self._gates,
            self._held,
        )
        parts = {step.part.model for step in manifest.pipeline.graph.steps}
        self._known[lane] = _Known(manifest, planner, PipelineLane(lane, planner), parts)
        self._has_news = True

    def take_news(self) -> bool:
        """Returns True if pipelines were read since the last call: they may need versions."""
        had, self._has_news = self._has_news, False
        return had

    async def needed_versions(
        self, model: str, versions: Sequence[int], live: int | None
    ) -> list[int]:
        """Returns the versions of a model that pipelines need beside its live one.

        Args:
            model: name of the model.
            versions: its published versions.
            live: the version that production names, which needs no other one beside it if it is in
                the range.
        """
        parts = {part.text: part for part in self._parts() if part.model == model}
        for known in self._known.values():
            known.unseen.discard(model)
        found = []
        for text, part in parts.items():
            if live is not None and part.fits(live, await self._semver_of(Lane(model, live))):
                continue
            if text not in self._newest or self._newest[text][0] != versions:
                try:
                    version = (await in_thread(newest, self._store, part)).version
                except StoreError:  # `settle` reports the missing part
                    self._newest.pop(text, None)
                    continue
                self._newest[text] = versions, version
            found.append(self._newest[text][1])
        return found

    async def _semver_of(self, lane: Lane) -> str:
        if lane not in self._semvers:
            manifest = await in_thread(self._store.manifest, lane.model, lane.version)
            self._semvers[lane] = manifest.semver or ""
        return self._semvers[lane]

    def unsettled(self) -> list[Lane]:
        """Returns the pipelines that do not accept requests, or whose parts have come or gone."""
        found = []
        for lane, known in self._known.items():
            states = [s.state for s in self._directory.of_model(lane.model) if s.lane == lane]
            has_parts = not self.missing_part(lane)
            if not known.is_open or (states == ["ready"]) != has_parts:
                found.append(lane)
        return found

    def missing_part(self, lane: Lane) -> str:
        """Returns which part of a pipeline is not loaded, and why; empty if all are."""
        try:
            self._known[lane].planner.plan()
        except ModelNotReadyError as error:
            return str(error)
        return ""

    async def settle(self, lane: Lane) -> None:
        """Opens a pipeline whose parts are loaded, and announces that it is ready.

        Raises:
            LoadError: a step fails, or the golden outputs differ.
            StoreError: the golden rows are damaged, or the store cannot be read.
        """
        known = self._known[lane]
        plan = known.planner.plan()
        began = time.monotonic()
        if not known.is_open:
            await self._replay(known, plan)
            if self._known.get(lane) is not known:  # it was unloaded meanwhile
                return
        labels = (lane.model, str(lane.version))
        if not known.is_open:
            known.is_open = True
            self._metrics.expect_lane(lane.model, lane.version)
            self._metrics.load_seconds.labels(*labels).observe(time.monotonic() - began)
            self._queue.open(lane, known.lane)
            versions = {text: str(served.lane) for text, served in plan.versions.items()}
            logger.info(
                "pipeline ready",
                extra={"model": lane.model, "version": lane.version, "parts": versions},
            )
        self._metrics.model_ready.labels(*labels).set(1)
        self._directory.announce(
            ServedVersion(
                lane=lane,
                state="ready",
                signature=known.manifest.signature,
                platform=PIPELINE_PLATFORM,
                semver=known.manifest.semver or "",
                execution=Execution(steps=_steps(known.pipeline.graph)),
            )
        )

    def unload(self, lane: Lane) -> None:
        """Withdraws a pipeline; requests that run still finish."""
        known = self._known.pop(lane)
        self._directory.withdraw(lane)
        if known.is_open:
            self._draining.append(known)
            self._queue.close(lane, known.close)
        self._metrics.forget_lane(lane.model, lane.version)
        logger.info("version unloaded", extra={"model": lane.model, "version": lane.version})

    async def _replay(self, known: _Known, plan: Plan) -> None:
        """Runs the golden rows through the steps.

        Raises:
            LoadError: a step fails, or the outputs differ by more than the tolerance.
        """
        loop = asyncio.get_running_loop()
        pipeline, rows = known.pipeline, known.manifest.signature.max_batch_size
        golden = await in_thread(read_golden, self._store, known.manifest)
        manifests = {
            text: await in_thread(self._store.manifest, served.lane.model, served.lane.version)
            for text, served in plan.versions.items()
        }
        alike = all(answers_alike(pipeline.recorded_with[t], m) for t, m in manifests.items())

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            return asyncio.run_coroutine_threadsafe(_ask(known, inputs), loop).result()

        where = "replaying the golden rows through the steps on this machine"
        try:
            if not alike:
                await in_thread(run_in_batches, run, golden.inputs, rows)
                return
            found = await in_thread(
                replay_once, where, run, golden, rows, pipeline.tolerance.single_gates
            )
        except ServingError as error:
            raise LoadError(f"{where}: {error}") from error
        except TimeoutError as error:
            raise LoadError(f"{where}: no outputs within {REPLAY_TIMEOUT_S:g} s") from error
        if failure := found.parity.failure(pipeline.tolerance):
            raise LoadError(f"{where}: {failure}", 1)


def _steps(graph: Pipeline) -> tuple[PipelineStep, ...]:
    """Returns the steps by the names that the tensors have in the pipeline.

    An input or output of the pipeline has its own name there, any other tensor that of its step.
    The tensors of a join are separated by `|`.
    """
    names = {refs_of(source): name for name, source in graph.outputs.items()}
    reads = graph.reads()

    def name_of(*refs: str) -> str:
        inside = (ref.removeprefix(f"{INPUT}.") for ref in refs)
        return names.get(refs) or "|".join(inside)

    return tuple(
        PipelineStep(
            model=step.part.model,
            version=step.part.wanted if isinstance(step.part.wanted, int) else -1,
            inputs={name: name_of(*refs_of(source)) for name, source in step.inputs.items()},
            outputs={one: name_of(f"{step.name}.{one}") for one in sorted(reads[step.name])},
        )
        for step in graph.in_order()
    )


async def _ask(known: _Known, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs some rows through the steps, before the lane is open.

    Raises:
        ServingError: a step refused them.
        TimeoutError: there was no outcome in time.
    """
    answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    request = InferRequest(
        request_id="golden rows",
        lane=Lane(known.manifest.model, known.manifest.version),
        inputs=inputs,
        rows=len(next(iter(inputs.values()))),
        deadline=time.monotonic() + REPLAY_TIMEOUT_S,
    )
    entry = Entry(request, time.monotonic(), answer.set_result)
    entry.intake = known.lane
    known.lane.accept(entry)
    try:
        async with asyncio.timeout(REPLAY_TIMEOUT_S):
            outcome = await answer
    finally:
        entry.cancel()
    if isinstance(outcome, ServingError):
        raise outcome
    return dict(outcome.outputs)
