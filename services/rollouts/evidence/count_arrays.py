"""Counts as arrays, as the e-processes take them: those of one rollout, or of simulated ones."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from model_store.rollouts.guards import Guards
from services.rollouts.evidence.e_processes import Array
from services.rollouts.evidence.evidence import COMPARISONS, PARTS, SCORE_STEPS, VERSIONS, Evidence

NO_COUNTS = {"shares", "disagreements", "lowest_bucket"}
"""Fields that say what is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountArrays:
    """Counts; leading axes, here `...`, are those of rollouts."""

    shares: Array
    """The candidate's shares of the traffic, [shares]; they are no counts."""
    requests: Array
    """[..., shares, 2], the last axis being the versions."""
    errors: Array
    """[..., shares, 2]"""
    nan: Array
    """[..., shares, 2], of those without errors."""
    outputs: Array
    """[..., shares, 2, values]: classes, or steps of a score."""
    disagreements: Array
    """Values of pairs, [values], the first being 0; they are no counts."""
    pairs: Array
    """[..., values]"""
    latencies: Array
    """[..., 3, 2, buckets]: by comparison, version and bucket."""
    lowest_bucket: int = 0
    """The bucket that is first on the last axis."""

    def times(self, factors: Array) -> Self:
        """Returns the counts of so many times the traffic of one rollout, for each of the factors.

        Args:
            factors: [factors], the first axis of the counts that are returned.
        """
        names = {field.name for field in fields(self)} - NO_COUNTS
        grown: dict[str, Any] = {name: _outer(factors, getattr(self, name)) for name in names}
        return replace(self, **grown)


def _outer(factors: Array, counts: Array) -> Array:
    return factors.reshape(-1, *[1] * counts.ndim) * counts


def empty_arrays(
    shares: Array, disagreements: Array, guards: Guards, *, buckets: int
) -> CountArrays:
    """Returns arrays of no traffic.

    Args:
        shares: the candidate's shares of the traffic, [shares].
        disagreements: values between 0 and 1 that pairs may have, [values].
        guards: they say how many values outputs have.
        buckets: number of buckets of latency.
    """
    versions = np.zeros((len(shares), 2))
    return CountArrays(
        shares=shares,
        requests=versions,
        errors=versions.copy(),
        nan=versions.copy(),
        outputs=np.zeros((len(shares), 2, output_values(guards))),
        disagreements=disagreements,
        pairs=np.zeros(len(disagreements)),
        latencies=np.zeros((3, 2, buckets)),
    )


def output_values(guards: Guards) -> int:
    """Returns the number of values that an output may have."""
    if guards.outputs is None:
        return 1
    return guards.outputs.values if guards.outputs.kind == "classes" else SCORE_STEPS + 1


def arrays_of(evidence: Evidence, guards: Guards) -> CountArrays:
    """Returns one rollout's counts.

    A class beyond those of the guard counts as the last one.
    """
    names = [(name.split("/"), count) for name, count in evidence.counts.items()]
    parts = sorted({int(path[1]) for path, _ in names if path[0] == "share"})
    buckets = [int(path[3]) for path, _ in names if path[0] == "latency"]
    lowest, highest = min(buckets, default=0), max(buckets, default=0)
    shares = np.array(parts) / PARTS
    steps = sorted({0, SCORE_STEPS, *(int(path[1]) for path, _ in names if path[0] == "pairs")})
    disagreements = np.array(steps) / SCORE_STEPS
    arrays = replace(
        empty_arrays(shares, disagreements, guards, buckets=highest - lowest + 1),
        lowest_bucket=lowest,
    )
    last = arrays.outputs.shape[-1] - 1
    for path, count in names:
        match path:
            case ["share", part, version, "output", value]:
                place = arrays.outputs[parts.index(int(part)), VERSIONS.index(version)]
                place[min(int(value), last)] += count
            case ["share", part, version, kind]:
                getattr(arrays, kind)[parts.index(int(part)), VERSIONS.index(version)] += count
            case ["pairs", step]:
                arrays.pairs[steps.index(int(step))] += count
            case ["latency", kind, version, bucket]:
                place = arrays.latencies[COMPARISONS.index(kind), VERSIONS.index(version)]
                place[int(bucket) - lowest] += count
    return arrays
