"""The plan of a pipeline: the version and the worker that each of its steps uses now.

In: the graph, and the versions that this process serves. Out: a plan, the same until a version
loads, unloads or becomes live; or the error that names the step, the model and its range.

Rules: a step uses the live version of its model if that is in its range, else the newest loaded one
in its range; two steps that name a model alike use the same version. If a request asks for an
accuracy, each step runs on the fastest loaded artifact of that version which gives it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import DATATYPES, Array
from model_store.pipelines.graph import Part, Pipeline, Step, refs_of, step_of
from model_store.pipelines.step_types import (
    PipelineTypeError,
    TypedStep,
    are_alike,
    check_types,
)
from model_store.semver.semver import parse_semver
from services.errors import ModelNotReadyError, ServingError, UnknownArtifactError
from services.inference.pipelines.held_bytes import HeldBytes
from services.inference.pipelines.step_gate import StepGate, StepGates
from services.queueing.artifact_rules import accurate_artifact
from services.queueing.directory import Directory
from services.queueing.lane_queue import WorkerIntake
from services.queueing.records import Lane, ServedVersion

WorkerOf = Callable[[Lane], WorkerIntake | None]
"""Returns the worker of a lane of this process; None if it is not loaded."""
MAX_KINDS = 1024
"""Checked shapes cached for one step; a full cache is cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """One input of a step."""

    name: str
    refs: tuple[str, ...]
    """Its tensor, or those of a join."""
    by_item: bool


class _Place(NamedTuple):
    """Lane, worker and gates of the steps of one model."""

    lane: Lane
    worker: WorkerIntake
    gates: Mapping[int, StepGate]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step, and where it runs."""

    number: int
    name: str
    lane: Lane
    worker: WorkerIntake
    gates: Mapping[int, StepGate]
    """Places of the worker for requests of pipelines, by priority."""
    signature: Signature
    takes: tuple[Take, ...]
    outputs: tuple[str, ...]
    """Outputs of the model that are read."""
    gives: tuple[tuple[str, str], ...]
    """These, each with the name of its tensor."""
    for_each: str | None
    where: str | None
    is_whole: bool
    """True if it takes tensors as they are: no items, no selected rows, no joins."""
    whole_inputs: tuple[tuple[str, str], ...]
    """Each input with its tensor, the first of a join."""
    needs: int
    """Number of other steps that it reads."""
    readers: tuple[int, ...]
    """Numbers of the steps that read it."""
    lengths: dict[tuple[tuple[int, ...], ...], int | None] = field(default_factory=dict)
    """Cache of `length_of`."""

    def length_of(self, inputs: Mapping[str, Array]) -> int | None:
        """Checks the sizes of a batch. Returns its length, for a padded model.

        Raises:
            SignatureError: a size that is known only now does not fit the model.
        """
        key = tuple([array.shape for array in inputs.values()])
        if key in self.lengths:
            return self.lengths[key]
        datatypes = {spec.name: spec.datatype for spec in self.signature.inputs}
        self.signature.check_inputs({n: (datatypes[n], a.shape) for n, a in inputs.items()})
        if len(self.lengths) >= MAX_KINDS:
            self.lengths.clear()
        found = self.signature.length_of({n: a.shape for n, a in inputs.items()})
        self.lengths[key] = found
        return found

    def empty_output(self, name: str) -> tuple[tuple[int, ...], "np.dtype[np.generic]"]:
        """Returns shape and NumPy type of an output."""
        spec = next(spec for spec in self.signature.outputs if spec.name == name)
        return spec.shape, DATATYPES[spec.datatype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A pipeline with the versions of its parts."""

    steps: tuple[PlannedStep, ...]
    versions: Mapping[str, ServedVersion]
    """Version of each part, by the text that names it."""
    outputs: Mapping[str, tuple[str, ...]]
    """Tensors of each output of the pipeline."""
    has_joins: bool
    """True if an output is a join."""
    datatypes: Mapping[str, str]
    """Datatype of each."""


class Planner:
    """Makes the plan of one pipeline, and keeps it until a version changes.

    Args:
        pipeline: the graph.
        signature: the signature that callers were told.
        directory: versions of this process.
        worker_of: finds their workers.
        gates: places of the workers for requests of pipelines.
        held: bytes that these requests hold.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        signature: Signature,
        directory: Directory,
        worker_of: WorkerOf,
        gates: StepGates,
        held: HeldBytes,
    ) -> None:
        self._pipeline = pipeline
        self._signature = signature
        self._directory = directory
        self.worker_of = worker_of
        self._gates = gates
        self.held = held
        self._planned_at = -1
        self._plans: dict[str, Plan | ServingError] = {}
        """Plans and refusals by accuracy."""

    def plan(self, accuracy: str = "") -> Plan:
        """Returns the plan of requests that begin now.

        Args:
            accuracy: least accuracy of each step; empty for the models' default artifacts.

        Raises:
            ModelNotReadyError: a part is not loaded, or does not fit.
            UnknownArtifactError: no loaded artifact of a part gives the accuracy.
        """
        if self._planned_at != self._directory.changes:
            self._planned_at = self._directory.changes
            self._plans.clear()
        found = self._plans.get(accuracy)
        if found is None:
            try:
                found = self._new_plan(accuracy)
            except (ModelNotReadyError, UnknownArtifactError) as error:
                found = error
            except PipelineTypeError as error:
                found = ModelNotReadyError(str(error))
            self._plans[accuracy] = found
        if isinstance(found, ServingError):
            raise type(found)(str(found))
        return found

    def _new_plan(self, accuracy: str) -> Plan:
        found: dict[str, tuple[ServedVersion, Lane, WorkerIntake]] = {}
        for step in self._pipeline.steps:
            if step.model not in found:
                found[step.model] = self._find(step, accuracy)
        signatures = {text: served.signature for text, (served, _, _) in found.items()}
        typed = check_types(self._pipeline, {t: s for t, s in signatures.items() if s is not None})
        if not are_alike(typed.signature, self._signature):
            raise PipelineTypeError(
                "its parts give it other tensors than its manifest has; publish it again"
            )
        numbers = {one.step.name: number for number, one in enumerate(typed.steps)}
        places = {
            text: _Place(lane, worker, self._gates.of(worker))
            for text, (_, lane, worker) in found.items()
        }
        sources = {s.name: {step_of(ref) for ref in s.refs()} for s in self._pipeline.steps}
        steps = [_planned(one, places[one.step.model], numbers, sources) for one in typed.steps]
        outputs = self._signature.outputs
        return Plan(
            steps=tuple(steps),
            versions={text: served for text, (served, _, _) in found.items()},
            outputs={s.name: refs_of(self._pipeline.outputs[s.name]) for s in outputs},
            has_joins=any(not isinstance(s, str) for s in self._pipeline.outputs.values()),
            datatypes={spec.name: spec.datatype for spec in outputs},
        )

    def _find(self, step: Step, accuracy: str) -> tuple[ServedVersion, Lane, WorkerIntake]:
        """Finds the version that runs a step, and the lane and the worker of its artifact."""
        part = step.part
        known = self._directory.of_model(part.model)
        in_range = [v for v in known if part.fits(v.lane.version, v.semver)]
        ready = [
            (served, worker)
            for served in in_range
            if served.state == "ready" and served.signature is not None
            if (worker := self.worker_of(served.lane)) is not None
        ]
        if not ready:
            raise ModelNotReadyError(
                f"step '{step.name}' needs {part.text}: {self._why_not(part, known, in_range)}"
            )
        live = self._directory.live_version(part.model)
        served, worker = max(
            ready,
            key=lambda one: (
                one[0].lane.version == live, parse_semver(one[0].semver), one[0].lane.version,
            ),
        )  # fmt: skip
        if not accuracy:
            return served, served.lane, worker
        try:
            lane = accurate_artifact(served, accuracy).lane
        except UnknownArtifactError as error:
            raise UnknownArtifactError(f"step '{step.name}': {error}") from error
        if (accurate := self.worker_of(lane)) is None:
            raise ModelNotReadyError(
                f"step '{step.name}': model {lane} is being unloaded; try again"
            )
        return served, lane, accurate

    def _why_not(
        self, part: Part, known: Sequence[ServedVersion], in_range: Sequence[ServedVersion]
    ) -> str:
        for served in in_range:
            if served.state == "unloaded":
                self._directory.miss(served.lane)
        if in_range:
            return "; ".join(
                f"version {s.lane.version} is {s.state}{': ' * bool(s.reason)}{s.reason}"
                for s in in_range
            )
        loaded = ", ".join(f"{s.lane.version}{f' ({s.semver})' * bool(s.semver)}" for s in known)
        return f"no version in this range is loaded (loaded of '{part.model}': {loaded or 'none'})"


def _planned(
    typed: TypedStep,
    place: _Place,
    numbers: Mapping[str, int],
    sources: Mapping[str, set[str]],
) -> PlannedStep:
    """Plans a step; `sources` has the steps that each step reads."""
    step = typed.step
    takes = tuple(
        Take(name=name, refs=refs_of(source), by_item=name in typed.by_item)
        for name, source in step.inputs.items()
    )
    return PlannedStep(
        number=numbers[step.name],
        name=step.name,
        lane=place.lane,
        worker=place.worker,
        gates=place.gates,
        signature=typed.signature,
        takes=takes,
        outputs=typed.outputs,
        gives=tuple((name, f"{step.name}.{name}") for name in typed.outputs),
        whole_inputs=tuple((take.name, take.refs[0]) for take in takes),
        for_each=step.for_each,
        where=step.where,
        is_whole=step.for_each is None
        and step.where is None
        and all(len(take.refs) == 1 for take in takes),
        needs=len(sources[step.name] & numbers.keys()),
        readers=tuple(numbers[name] for name, read in sources.items() if step.name in read),
    )
