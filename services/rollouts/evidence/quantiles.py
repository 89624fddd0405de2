"""Latency quantiles: whether the candidate's is at most a few times the live version's.

Counts come from pairs of requests of one short block of time, one of each version, drawn at
random: neighbours in time depend on each other, and what slows a block slows both versions.
Latencies are counted in buckets, and the candidate's are first divided by the tolerated ratio.
"""

import math

import numpy as np

from services.rollouts.evidence.e_processes import (
    CANDIDATE,
    LIVE,
    SLIGHTLY,
    Array,
    averaged,
    log_mean_above,
    log_mean_below,
    log_share_above,
    log_share_below,
)

BUCKETS_AN_OCTAVE = 32
"""A bucket's bounds differ by 2.2 %."""
LOWEST_S, HIGHEST_S = 1e-5, 1e4
"""Seconds; latencies beyond are counted as these."""
ABOVE, EQUAL, BELOW = 0, 1, 2
"""Places on the axis of comparisons: the candidate's bucket against the live version's."""
_EVENS = np.array([0.5])
_ZERO_ONE = np.array([0.0, 1.0])


def bucket_of(seconds: float) -> int:
    """Returns the bucket of a latency; NaN counts as the highest."""
    limited = max(seconds, LOWEST_S) if seconds < HIGHEST_S else HIGHEST_S
    return round(math.log2(limited) * BUCKETS_AN_OCTAVE)


def seconds_of(bucket: int) -> float:
    """Returns the latency in the middle of a bucket."""
    return float(2 ** (bucket / BUCKETS_AN_OCTAVE))


def buckets_of_ratio(ratio: float) -> int:
    """Returns the number of buckets by which a ratio moves a latency, rounded up."""
    return math.ceil(math.log2(ratio) * BUCKETS_AN_OCTAVE - 1e-9)


def comparison(candidate_bucket: int, live_bucket: int) -> int:
    """Returns the place on the axis of comparisons."""
    return EQUAL + (candidate_bucket < live_bucket) - (candidate_bucket > live_bucket)


def log_quantile_ratios(pairs: Array, quantile: float) -> tuple[Array, Array]:
    """Weighs pairs against "the candidate's quantile is at most at its limit", and "at least".

    The hypothesis is about x, the live version's unknown quantile: at any moment the candidate,
    divided by the ratio, exceeds x no more often, or no less often, than the live version does. For
    each x there are two e-processes: one against "x is that quantile", after Howard and Ramdas,
    "Sequential estimation of quantiles", arXiv 1906.09712; and one for pairs of which one latency
    exceeds x, against even odds. Their mean at the least favourable x is an e-process.

    Args:
        pairs: counts by comparison, version and bucket, [..., 3, 2, buckets].
        quantile: such as 0.99.
    """
    padded = _padded(pairs)
    within = padded.cumsum(-1)
    slower = within[..., ABOVE, LIVE, :] - within[..., ABOVE, CANDIDATE, :]
    faster = within[..., BELOW, CANDIDATE, :] - within[..., BELOW, LIVE, :]
    events = np.stack([slower, faster], axis=-1)[..., None, :]
    quantiles = _log_not_quantile(padded[..., LIVE, :].sum(-2), quantile)
    above, below = (
        averaged(np.stack([weigh(events, _EVENS, 1.0, SLIGHTLY), quantiles], axis=-1)).min(-1)
        for weigh in (log_share_above, log_share_below)
    )
    return above, below


def quantile_interval(counts: Array, quantile: float, risk: float) -> tuple[int, int] | None:
    """Returns the lowest and the highest bucket that may hold a quantile; None if any may.

    Args:
        counts: latencies by bucket, [buckets].
        quantile: such as 0.99.
        risk: probability that the interval misses the quantile at any moment.
    """
    possible = np.flatnonzero(_log_not_quantile(_padded(counts), quantile) < -math.log(risk))
    if not len(possible) or possible[0] == 0 or possible[-1] == len(counts) + 1:
        return None
    return int(possible[0]) - 1, int(possible[-1]) - 1


def _log_not_quantile(counts: Array, quantile: float) -> Array:
    """Weighs latencies against "each bucket holds the quantile", [..., buckets]."""
    within = counts.cumsum(-1)
    total = within[..., -1:]
    before = within - counts
    not_within = np.stack([total - within, within], axis=-1)
    not_before = np.stack([total - before, before], axis=-1)
    few = log_mean_below(not_within, _ZERO_ONE, quantile, SLIGHTLY)
    many = log_mean_above(not_before, _ZERO_ONE, quantile, SLIGHTLY)
    return averaged(np.stack([few, many], axis=-1))


def _padded(counts: Array) -> Array:
    """Adds an empty bucket at both ends, for quantiles that no latency has shown yet."""
    return np.pad(counts, [(0, 0)] * (counts.ndim - 1) + [(1, 1)])
