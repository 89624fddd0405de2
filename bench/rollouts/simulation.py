"""Many rollouts of one scenario at once: draws their counts, and weighs them as the judge does."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bench.rollouts.scenarios import RARELY, Scenario
from model_store.rollouts.guards import Guards
from services.rollouts.evidence.count_arrays import CountArrays, empty_arrays
from services.rollouts.evidence.e_processes import CANDIDATE, LIVE, Array
from services.rollouts.evidence.quantiles import (
    ABOVE,
    BELOW,
    BUCKETS_AN_OCTAVE,
    EQUAL,
    buckets_of_ratio,
)
from services.rollouts.evidence.weighing import weigh

AT_ONCE, WITH_LATENCIES_AT_ONCE = 5000, 500
"""Rollouts whose arrays are held at once; latencies have a hundred times as many counts."""
WIDTH = 3.5
"""Standard deviations of a latency for which there are buckets."""
NEVER = np.inf


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Ends of rollouts, in the scenario's unit; infinite for those that did not end so."""

    rolled_back: Array
    promoted: Array

    def together(self, other: "Outcomes") -> "Outcomes":
        """Joins the outcomes of two sets of rollouts."""
        return Outcomes(
            np.concatenate([self.rolled_back, other.rolled_back]),
            np.concatenate([self.promoted, other.promoted]),
        )

    @property
    def rolled_back_share(self) -> float:
        """Share of the rollouts that were rolled back."""
        return float(np.isfinite(self.rolled_back).mean())

    @property
    def promoted_share(self) -> float:
        """Share of the rollouts that were promoted."""
        return float(np.isfinite(self.promoted).mean())


def simulate(
    scenario: Scenario,
    guards: Guards,
    rollouts: int,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Outcomes:
    """Simulates rollouts, each until it is rolled back, promoted, or out of looks.

    Args:
        scenario: what is true.
        guards: what is allowed.
        rollouts: number of them.
        seed: of the random numbers.
        progress: called after each look with the share of the work that is done; rollouts that end
            early make it jump.
    """
    random = np.random.default_rng(seed)
    outcomes = Outcomes(np.empty(0), np.empty(0))
    at_once = WITH_LATENCIES_AT_ONCE if scenario.latency_pairs else AT_ONCE
    for first in range(0, rollouts, at_once):
        some = min(at_once, rollouts - first)

        def tell(share: float, before: int = first, own: int = some) -> None:
            progress((before + share * own) / rollouts)

        outcomes = outcomes.together(_simulate_some(scenario, guards, some, random, tell))
    return outcomes


def _simulate_some(
    scenario: Scenario,
    guards: Guards,
    rollouts: int,
    random: np.random.Generator,
    progress: Callable[[float], None],
) -> Outcomes:
    rolled_back, promoted = np.full((2, rollouts), NEVER)
    running = np.arange(rollouts)
    counts = _empty(scenario, guards, rollouts)
    supported = {name: np.zeros(rollouts, bool) for name in guards.shares_of_risk()}
    step = scenario.requests or scenario.pairs or scenario.latency_pairs
    for look in range(1, scenario.looks + 1):
        counts = _more(counts, scenario, guards, random)
        broken = np.zeros(len(running), bool)
        for name in _looked_at(scenario, guards, look):
            weighed = weigh(name, counts, guards)
            broken |= weighed.against >= -math.log(guards.shares_of_risk()[name])
            supported[name] = weighed.supporting >= -math.log(guards.risk)
        kept = np.logical_and.reduce(list(supported.values())) & ~broken
        rolled_back[running[broken]] = look * step
        promoted[running[kept]] = look * step
        going = ~broken & ~kept
        running = running[going]
        progress(max(look / scenario.looks, 1 - len(running) / rollouts))
        if not len(running):
            break
        if not going.all():
            counts = _chosen(counts, going)
            supported = {name: found[going] for name, found in supported.items()}
    return Outcomes(rolled_back, promoted)


def _looked_at(scenario: Scenario, guards: Guards, look: int) -> list[str]:
    """Guards with new traffic; e-values of the others are as before."""
    traffic = {
        "errors": scenario.requests,
        "nan": scenario.requests,
        "outputs": scenario.requests,
        "disagreement": scenario.pairs,
        "latency": scenario.latency_pairs,
    }
    left_out = scenario.rarely if look % RARELY else ()
    return [name for name in guards.shares_of_risk() if traffic[name] and name not in left_out]


def _empty(scenario: Scenario, guards: Guards, rollouts: int) -> CountArrays:
    buckets = 1
    if scenario.latency_pairs:
        buckets = round(2 * WIDTH * scenario.spread * BUCKETS_AN_OCTAVE / math.log(2))
        buckets += round(2 * abs(math.log2(scenario.slowness)) * BUCKETS_AN_OCTAVE) + 20
    empty = empty_arrays(np.array([scenario.share]), np.array([0.0, 1.0]), guards, buckets=buckets)
    names = ("requests", "errors", "nan", "outputs", "pairs", "latencies")
    wide = {name: np.zeros((rollouts, *getattr(empty, name).shape)) for name in names}
    return replace(empty, lowest_bucket=-(buckets // 2), **wide)


def _chosen(counts: CountArrays, which: npt.NDArray[np.bool_]) -> CountArrays:
    names = ("requests", "errors", "nan", "outputs", "pairs", "latencies")
    return replace(counts, **{name: getattr(counts, name)[which] for name in names})


def _more(
    counts: CountArrays, scenario: Scenario, guards: Guards, random: np.random.Generator
) -> CountArrays:
    """Adds the traffic between two looks."""
    rollouts = len(counts.requests)
    if scenario.requests:
        candidate = random.binomial(scenario.requests, scenario.share, rollouts)
        requests = np.stack([candidate, scenario.requests - candidate], axis=-1)
        errors = random.binomial(requests, scenario.error_rates)
        answers = requests - errors
        counts.requests[:, 0] += requests
        counts.errors[:, 0] += errors
        counts.nan[:, 0] += random.binomial(answers, scenario.nan_rates)
        for place in (CANDIDATE, LIVE):
            drawn = random.multinomial(answers[:, place], scenario.outputs[place])
            counts.outputs[:, 0, place] += drawn
    if scenario.pairs:
        differ = random.binomial(scenario.pairs, scenario.disagreement, rollouts)
        counts.pairs[:] += np.stack([scenario.pairs - differ, differ], axis=-1)
    if scenario.latency_pairs:
        _add_latencies(counts, scenario, guards, random)
    return counts


def _add_latencies(
    counts: CountArrays, scenario: Scenario, guards: Guards, random: np.random.Generator
) -> None:
    assert guards.latency is not None
    rollouts, most = len(counts.latencies), counts.latencies.shape[-1] - 1
    logs = random.normal(0, scenario.spread, (rollouts, scenario.latency_pairs, 2)) / math.log(2)
    logs[..., CANDIDATE] += math.log2(scenario.slowness)
    buckets = np.rint(logs * BUCKETS_AN_OCTAVE).astype(int)
    buckets[..., CANDIDATE] -= buckets_of_ratio(guards.latency.ratio)
    candidate, live = np.moveaxis(np.clip(buckets - counts.lowest_bucket, 0, most), -1, 0)
    kind = np.select([candidate > live, candidate < live], [ABOVE, BELOW], EQUAL)
    rollout = np.arange(rollouts)[:, None]
    for version, bucket in ((CANDIDATE, candidate), (LIVE, live)):
        places = np.ravel_multi_index(
            (rollout, kind, np.full_like(kind, version), bucket), counts.latencies.shape
        )
        added = np.bincount(places.ravel(), minlength=counts.latencies.size)
        counts.latencies[:] += added.reshape(counts.latencies.shape)
