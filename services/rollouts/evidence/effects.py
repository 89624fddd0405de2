"""Effects for a report: estimates, and intervals that hold at every moment at once.

An interval has each value against which the counts do not speak by more than its risk. So the
probability that it ever misses the true value is at most that risk.
"""

import math
from collections.abc import Callable

import numpy as np

from model_store.rollouts.guards import Guards, OutputGuard
from services.rollouts.evidence.count_arrays import CountArrays
from services.rollouts.evidence.e_processes import (
    CANDIDATE,
    LIVE,
    STAKES,
    Array,
    log_difference_above,
    log_share_wealth,
    log_wealth,
)
from services.rollouts.evidence.quantiles import (
    buckets_of_ratio,
    quantile_interval,
    seconds_of,
)
from services.rollouts.evidence.weighing import ZERO_ONE, output_means

Figures = dict[str, float | None]
_BITS = 30
"""Precision of a bound: 2**-30 of the interval in which it is sought."""
_SECTION_BITS = 6
_FACTORS = 2**16
"""Numbers of one array, beyond which NumPy's time grows with them: an interval of many values is
cut into fewer sections at a time."""
_HIGHEST_RATIO = 1e6


def figures_of(name: str, counts: CountArrays, guards: Guards, risk: float) -> Figures:
    """Returns a guard's figures, without those that the counts do not give.

    Args:
        name: one of `guards.shares_of_risk()`.
        counts: those of one rollout.
        guards: limits.
        risk: probability that one of the guard's intervals ever misses its value.
    """
    if name in ("errors", "nan"):
        faults = counts.errors if name == "errors" else counts.nan
        total = counts.requests if name == "errors" else counts.requests - counts.errors
        return _rates(faults, total, counts.shares, risk)
    if name == "disagreement":
        low, high = mean_interval(counts.pairs, counts.disagreements, risk)
        mean, pairs = _mean(counts.pairs, counts.disagreements), float(counts.pairs.sum())
        return {"pairs": pairs, "mean": mean, "mean_low": low, "mean_high": high}
    if name == "latency":
        return _quantiles(counts, guards, risk)
    assert guards.outputs is not None
    return _differences(counts, guards.outputs, risk)


def mean_interval(counts: Array, values: Array, risk: float) -> tuple[float, float]:
    """Returns the bounds of a mean of observations in [0, 1], after arXiv 2010.09686."""
    needed = math.log(2 / risk)

    def low(counts: Array, values: Array) -> float:
        weights = np.ones(len(STAKES))

        def wealth(means: Array) -> Array:
            return log_wealth(counts, values, means, STAKES, weights)

        return _crossing(wealth, needed, 0.0, 1.0, len(values))

    return low(counts, values), 1 - low(counts, 1 - values)


def ratio_interval(events: Array, shares: Array, risk: float) -> tuple[float, float | None]:
    """Returns the bounds of the quotient of two rates; None above for no bound."""
    needed = math.log(2 / risk)

    def low(events: Array, shares: Array) -> float:
        def wealth(logarithms: Array) -> Array:
            return log_share_wealth(events, shares, np.exp(logarithms))

        widest = math.log(_HIGHEST_RATIO)
        return math.exp(_crossing(wealth, needed, -widest, widest, events.size))

    lowest, highest = low(events, shares), 1 / low(events[..., ::-1], 1 - shares)
    least = 1 / _HIGHEST_RATIO * 1.01
    return (0.0 if lowest < least else lowest), (None if highest > 1 / least else highest)


def difference_interval(
    counts: Array, values: Array, shares: Array, risk: float
) -> tuple[float, float]:
    """Returns the bounds of the difference of two means, after arXiv 2210.10768."""
    needed = math.log(2 / risk)

    def low(counts: Array, shares: Array) -> float:
        def wealth(differences: Array) -> Array:
            return log_difference_above(counts, values, shares, differences)

        return _crossing(wealth, needed, -1.0, 1.0, counts.size)

    return low(counts, shares), -low(counts[..., ::-1, :], 1 - shares)


def _crossing(
    wealth: Callable[[Array], Array], needed: float, low: float, high: float, values: int
) -> float:
    """Returns the place up to which a falling function is at least `needed`, or `low`.

    Args:
        wealth: the function, of several places at once.
        needed: its value.
        low: lowest place.
        high: highest place.
        values: counts by which the wealth is computed.
    """
    room = _FACTORS // (max(values, 1) * len(STAKES))
    bits = min(max(room.bit_length() - 1, 1), _SECTION_BITS)
    for _ in range(math.ceil(_BITS / bits)):
        places = np.linspace(low, high, 2**bits + 1)
        reached = int(np.count_nonzero(wealth(places[1:-1]) >= needed))
        low, high = places[reached], places[reached + 1]
    return float(low)


def _rates(faults: Array, total: Array, shares: Array, risk: float) -> Figures:
    requests, events = total.sum(-2), faults.sum(-2)
    figures: Figures = {}
    for name, place in (("candidate", CANDIDATE), ("live", LIVE)):
        own = np.array([requests[place] - events[place], events[place]])
        low, high = mean_interval(own, ZERO_ONE, risk / 3)
        figures |= {
            f"{name}_requests": float(requests[place]),
            f"{name}_rate": _mean(own, ZERO_ONE),
            f"{name}_rate_low": low,
            f"{name}_rate_high": high,
        }
    low, highest = ratio_interval(faults, shares, risk / 3)
    return figures | {"ratio_low": low, "ratio_high": highest}


def _quantiles(counts: CountArrays, guards: Guards, risk: float) -> Figures:
    assert guards.latency is not None
    shift = buckets_of_ratio(guards.latency.ratio)
    figures: Figures = {"pairs": float(counts.latencies[:, LIVE].sum())}
    part = risk / (2 * len(guards.latency.quantiles))
    for quantile in guards.latency.quantiles:
        bounds = {}
        for version, place in (("candidate", CANDIDATE), ("live", LIVE)):
            latencies = counts.latencies[:, place].sum(0)
            lowest = counts.lowest_bucket + (shift if place == CANDIDATE else 0)
            if latencies.sum():
                middle = int(np.searchsorted(latencies.cumsum(), quantile * latencies.sum()))
                figures[f"{version}_p{quantile * 100:g}_s"] = seconds_of(middle + lowest)
            found = quantile_interval(latencies, quantile, part)
            if found:
                bounds[version] = found[0] + lowest, found[1] + lowest
        if len(bounds) == 2:
            candidate, live = bounds["candidate"], bounds["live"]
            figures[f"p{quantile * 100:g}_ratio_low"] = seconds_of(candidate[0] - live[1] - 1)
            figures[f"p{quantile * 100:g}_ratio_high"] = seconds_of(candidate[1] - live[0] + 1)
    return figures


def _differences(counts: CountArrays, guard: OutputGuard, risk: float) -> Figures:
    """Gives the largest difference; its interval allows for the choice among all classes."""
    means, values = output_means(counts.outputs, guard)
    by_version = means.sum(-3)
    totals = by_version.sum(-1)
    figures: Figures = {
        "candidate_outputs": float(totals[0, CANDIDATE]),
        "live_outputs": float(totals[0, LIVE]),
    }
    if not totals.all():
        return figures
    shares_of_values = (by_version * values).sum(-1) / totals
    differences = shares_of_values[:, CANDIDATE] - shares_of_values[:, LIVE]
    largest = int(abs(differences).argmax())
    low, high = difference_interval(means[largest], values, counts.shares, risk / len(means))
    if guard.kind == "classes":
        figures["class"] = largest
    return figures | {
        "difference": float(differences[largest]),
        "difference_low": low,
        "difference_high": high,
    }


def _mean(counts: Array, values: Array) -> float | None:
    total = counts.sum()
    return float((counts * values).sum() / total) if total else None
