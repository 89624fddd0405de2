"""What counts say about each guard: against the candidate, and for it.

The same functions judge one rollout and thousands of simulated ones. An e-value against the
candidate weighs the hypothesis that the guard's limit is kept, one for it the hypothesis that the
limit is reached or passed: too little traffic is evidence of neither.
"""

from typing import NamedTuple

import numpy as np

from model_store.rollouts.guards import (
    DisagreementGuard,
    Guards,
    LatencyGuard,
    OutputGuard,
    RateGuard,
)
from services.rollouts.evidence.count_arrays import CountArrays
from services.rollouts.evidence.e_processes import (
    A_FEW_TIMES,
    CANDIDATE,
    EVEN,
    Array,
    averaged,
    log_difference_above,
    log_mean_above,
    log_mean_below,
    log_share_above,
    log_share_below,
)
from services.rollouts.evidence.evidence import SCORE_STEPS
from services.rollouts.evidence.quantiles import log_quantile_ratios

ZERO_ONE = np.array([0.0, 1.0])
SCORES = np.linspace(0, 1, SCORE_STEPS + 1)


class Weighed(NamedTuple):
    """Logarithms of e-values, [...]."""

    against: Array
    supporting: Array


def weigh(name: str, counts: CountArrays, guards: Guards) -> Weighed:
    """Weighs the counts of one guard.

    Args:
        name: one of `guards.shares_of_risk()`.
        counts: those of one rollout, or of many.
        guards: limits.
    """
    guard = getattr(guards, name)
    match guard:
        case RateGuard():
            faults = counts.errors if name == "errors" else counts.nan
            total = counts.requests if name == "errors" else counts.requests - counts.errors
            return _weigh_rate(faults, total, counts.shares, guard)
        case DisagreementGuard():
            return _weigh_disagreement(counts, guard)
        case LatencyGuard():
            return _weigh_latency(counts.latencies, guard)
        case OutputGuard():
            return _weigh_outputs(counts.outputs, counts.shares, guard)
    raise AssertionError(name)


def _weigh_rate(faults: Array, total: Array, shares: Array, guard: RateGuard) -> Weighed:
    """Both limits must be passed to speak against, and one is enough to speak for."""
    own = np.stack([total - faults, faults], axis=-1)[..., CANDIDATE, :].sum(-2)
    above = log_share_above(faults, shares, guard.ratio)
    below = log_share_below(faults, shares, guard.ratio, EVEN)
    return Weighed(
        np.minimum(above, log_mean_above(own, ZERO_ONE, guard.rate)),
        averaged(np.stack([below, log_mean_below(own, ZERO_ONE, guard.rate)], axis=-1)),
    )


def _weigh_disagreement(counts: CountArrays, guard: DisagreementGuard) -> Weighed:
    return Weighed(
        log_mean_above(counts.pairs, counts.disagreements, guard.limit, A_FEW_TIMES),
        log_mean_below(counts.pairs, counts.disagreements, guard.limit),
    )


def _weigh_latency(pairs: Array, guard: LatencyGuard) -> Weighed:
    above, below = zip(*(log_quantile_ratios(pairs, q) for q in guard.quantiles), strict=True)
    return Weighed(averaged(np.stack(above, axis=-1)), np.minimum.reduce(below))


def _weigh_outputs(outputs: Array, shares: Array, guard: OutputGuard) -> Weighed:
    """Holds each class's share, or the mean score, within the limit on both sides."""
    counts, values = output_means(outputs, guard)
    flipped = counts[..., ::-1, :]
    difference = guard.difference
    more = log_difference_above(counts, values, shares, difference)
    less = log_difference_above(flipped, values, 1 - shares, difference)
    not_more = log_difference_above(flipped, values, 1 - shares, -difference)
    not_less = log_difference_above(counts, values, shares, -difference)
    return Weighed(
        averaged(np.concatenate([more, less], axis=-1)),
        np.minimum(not_more, not_less).min(-1),
    )


def output_means(outputs: Array, guard: OutputGuard) -> tuple[Array, Array]:
    """Returns counts whose means are compared, and their values.

    The counts are [..., classes, shares, 2, values]; scores are one class, and an output has the
    values 0 and 1 for each class.
    """
    if guard.kind == "scores":
        return outputs[..., None, :, :, :], SCORES
    own = np.moveaxis(outputs, -1, -3)
    others = outputs.sum(-1)[..., None, :, :] - own
    return np.stack([others, own], axis=-1), ZERO_ONE
