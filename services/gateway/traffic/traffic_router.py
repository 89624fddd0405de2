"""Sends requests that name no version where a rollout or a split draws them, and counts outcomes.

In: decoded requests of models that have traffic to share. Out: the same with a version, and a
callback that counts the outcome and has the request mirrored.

Rules:
- a request that names a version is left alone; so are jobs, and the steps of a pipeline;
- a version that is not ready here, or does not take the request, is answered for by the live one;
  only the latter is a failure of the version, and neither counts as one of the live version;
- the caller has its answer before anything is counted, and a fault here reaches no caller;
- a failure is one of the version's own (`routed_call.py`);
- the steps of a sequence keep one version.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from flambeau.protocol.signature import Signature
from model_store.rollouts.traffic import Rollout, Shadow, Split, Traffic
from services.errors import ServingError
from services.gateway.admission import Admission, InferCall, KeyOf
from services.gateway.traffic.answer_comparison import Task, task_of
from services.gateway.traffic.draw import (
    SequenceVersions,
    point_of,
    version_at,
    version_ends,
)
from services.gateway.traffic.mirrors import Mirrors, Pair, Target
from services.gateway.traffic.routed_call import Counted, RoutedCall
from services.gateway.traffic.shown_tensors import Redacts
from services.queueing.directory import LIVE_ALIAS
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import SequenceStep
from services.rollouts.traffic_counts import USUAL_RATIO, Comparison, TrafficCounts
from services.telemetry.metrics import Metrics

_NOTHING: tuple[Counted, ...] = ()
_NO_TARGETS: Sequence[Target] = ()


class _Plan(NamedTuple):
    """The meaning of the traffic of one model, worked out once."""

    changes: int
    """Those of the directory when it was worked out."""
    live: int
    signature: Signature
    """Of the live version."""
    route: Rollout | Split | None
    """None if the live version gets all requests."""
    ends: Sequence[tuple[float, int]]
    """Points of [0, 1) at which the parts of the route's versions end, in order."""
    task: Task
    counted: Mapping[int, tuple[Counted, ...]]
    """Where a request is counted, by the version that is drawn."""
    mirrored: Sequence[tuple[float, Target]]
    """Share of the live version's requests, and where they are repeated."""


class TrafficRouter:
    """The rollouts, splits and shadows of one process with edges.

    Args:
        admission: knows the served versions, and checks requests.
        queue: queue that mirrored requests go to.
        metrics: counts what the counts of requests do not say.
        redacts: as in `Mirrors`.

    Attributes:
        counts: what was counted.
        mirrors: requests that are repeated at candidates.
    """

    def __init__(
        self,
        admission: Admission,
        queue: MemoryQueue,
        metrics: Metrics,
        redacts: Redacts = lambda _model, _tensor, _datatype: False,
    ) -> None:
        self.counts = TrafficCounts()
        self.mirrors = Mirrors(admission, queue, metrics, redacts)
        self._admission, self._directory = admission, admission.directory
        self._fallbacks = metrics.drawn_fallbacks
        self._sequences = SequenceVersions()
        self._plans: dict[str, _Plan] = {}
        """By model with traffic, or that had some."""

    def route(self, call: InferCall, traffic: Traffic, key_of: KeyOf) -> RoutedCall | None:
        """Draws a request's version; returns None if the live one has it and nothing is counted.

        Args:
            call: the request.
            traffic: that of its model.
            key_of: returns the value of a header or a parameter.

        Raises:
            ServingError: the model is not ready.
        """
        if call.version and call.version != LIVE_ALIAS:
            return None
        plan = self._plans.get(call.model)
        changes = self._directory.changes
        if plan is None or plan.changes != changes:
            served, signature = self._directory.resolve(call.model, call.version)
            plan = _plan(traffic, signature, served.lane.version, self.counts, changes)
            self._plans[call.model] = plan
        targets = _NO_TARGETS
        for share, target in plan.mirrored:
            if random.random() < share:  # noqa: S311
                targets = [*targets, target]
        if plan.route is None and not targets:
            return None
        live, signature = plan.live, plan.signature
        version, counted, refused, renew = live, _NOTHING, _NOTHING, None
        if plan.route is not None:
            version = self._drawn(call, plan, signature, key_of)
            counted = plan.counted[version]
            if version != live and (reason := self._why_not(call, version)):
                refused = counted if reason == "refused_inputs" else _NOTHING
                version, counted = live, _NOTHING
            if call.sequence is not None and signature.sequence is not None:
                renew = self._kept(
                    plan.route, call.sequence, signature.sequence.max_idle_s, version
                )
        if version != live:
            call, targets = msgspec.structs.replace(call, version=str(version)), _NO_TARGETS
        if not (counted or refused or targets or renew) and version == live:
            return None
        return RoutedCall(
            call,
            plan.task,
            counted,
            targets,
            self.mirrors,
            limit_s=self._admission.request_timeout_s,
            refused=refused,
            renew=renew,
        )

    def _drawn(self, call: InferCall, plan: _Plan, signature: Signature, key_of: KeyOf) -> int:
        """Draws by the sequence, or by the key, or else at random."""
        step, route = call.sequence, plan.route
        assert route is not None
        if step is not None and signature.sequence is not None:
            known = self._sequences.known(route.id, step)
            if known is not None and known in plan.counted:
                return known
            return version_at(plan.ends, point_of(route.id, f"sequence {step.id}"))
        if route.sticky:
            source, _, name = route.sticky.partition(":")
            if key := key_of(source, name):
                return version_at(plan.ends, point_of(route.id, key))
        return version_at(plan.ends, random.random())  # noqa: S311

    def _kept(
        self, route: Rollout | Split, step: SequenceStep, idle_s: float, version: int
    ) -> Callable[[], None]:
        """Remembers the version that gets a step; returns what to call once it is answered."""
        self._sequences.keep(route.id, step, idle_s, version)
        return partial(self._sequences.renew, route.id, step, idle_s)

    def _why_not(self, call: InferCall, version: int) -> str:
        """Returns why a version cannot have a request; empty if it can."""
        named = msgspec.structs.replace(call, version=str(version))
        try:
            reason = "" if self._admission.fits(named) else "refused_inputs"
        except ServingError:
            reason = "not_ready"
        if reason == "refused_inputs" and not self._fits_live(call):
            return "not_ready"  # the caller's fault, which the live version names
        if reason:
            self._fallbacks.labels(call.model, str(version), reason).inc()
        return reason

    def _fits_live(self, call: InferCall) -> bool:
        try:
            return self._admission.fits(call)
        except ServingError:
            return False


def _plan(
    traffic: Traffic, signature: Signature, live: int, counts: TrafficCounts, changes: int
) -> _Plan:
    """Works out what the traffic of a model means while `live` is its live version."""
    rollout, split, shadow = traffic.rollout, traffic.split, traffic.shadow
    route: Rollout | Split | None = None
    task, counted = Task(), dict[int, tuple[Counted, ...]]()
    mirrored: list[tuple[float, Target]] = []
    if rollout is not None and rollout.baseline == live:
        route = rollout
        task = task_of(rollout.guards.outputs, signature, rollout.spreads)
        latency = rollout.guards.latency
        comparison = counts.comparison(rollout.id, latency.ratio if latency else USUAL_RATIO)
        counted[live] = ((comparison, rollout.share, "live"),)
        counted[rollout.candidate] = ((comparison, rollout.share, "candidate"),)
        if rollout.mirrored:
            mirrored.append((rollout.mirrored, _of_rollout(rollout, task, comparison)))
    elif split is not None:
        route, task = split, task_of(None, signature, {})
        counted = _of_split(split, counts)
    if shadow is not None:
        shadowed = task_of(None, signature, shadow.spreads)
        mirrored.append((shadow.sample, _of_shadow(shadow, shadowed, counts)))
    ends = [] if route is None else version_ends(route)
    return _Plan(changes, live, signature, route, ends, task, counted, mirrored)


def _of_split(split: Split, counts: TrafficCounts) -> dict[int, tuple[Counted, ...]]:
    """Returns where arms are counted: each but the first beside it, on their common traffic."""
    first, *others = split.arms
    found: dict[int, tuple[Counted, ...]] = {first.version: ()}
    for arm in others:
        comparison = counts.arm(split.id, arm.version, len(others))
        share = arm.share / (arm.share + first.share)
        found[arm.version] = ((comparison, share, "candidate"),)
        found[first.version] += ((comparison, share, "live"),)
    return found


def _of_rollout(rollout: Rollout, task: Task, comparison: Comparison) -> Target:
    def take(pair: Pair) -> None:
        comparison.count_pair(pair.judged.disagreement)

    return Target(rollout.candidate, task, False, take, lambda _: None)


def _of_shadow(shadow: Shadow, task: Task, counts: TrafficCounts) -> Target:
    figures = counts.shadow(shadow.id, shadow.keep)

    def take(pair: Pair) -> None:
        figures.count_pair(
            pair.kept, live_s=pair.live_s, candidate_s=pair.candidate_s, nan=pair.judged.nan
        )

    return Target(shadow.candidate, task, shadow.keep > 0, take, figures.drop)
