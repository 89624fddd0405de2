"""Selects the verified artifacts that are worth publishing. Pure rules.

In: the reports of verified artifacts. Out: for each the reason for dropping it, or None if kept.

An artifact is *clearly better* than another in a criterion if the gain exceeds noise: a run of some
batch size is faster by a fifth and by 0.05 ms; the task's metric is beyond the 95 % interval of the
other's; peak memory is lower by a tenth and by 4 MiB; or it computes in FP32, and so gives the
checkpoint's own answers, while the other one rounds.

Rules: an artifact that is better in nothing and clearly worse in something is dropped; of the rest
the simpler ones are kept, and others only if they are clearly better than each of those in some
criterion. So at least one is always kept, no kept artifact replaces another, and each dropped one
is clearly better in nothing than some kept one.
"""

from collections.abc import Sequence

from model_store.manifest import speed_key
from model_store.metric import MeasuredMetric
from training.auto.candidates import simplicity
from training.reporting.report import ArtifactReport

LATENCY_SHARE, LATENCY_MS = 0.2, 0.05
"""Largest differences between the medians of two attempts at one file."""
MEMORY_SHARE, MEMORY_BYTES = 0.1, 4 * 2**20
"""Smaller savings of memory are ignored."""


def drop_reasons(proven: Sequence[ArtifactReport]) -> list[str | None]:
    """Returns for each artifact the reason for dropping it; None for kept ones.

    Args:
        proven: measured artifacts that may be published.
    """
    if any(one.peak_memory_bytes is None for one in proven):
        proven = [one.model_copy(update={"peak_memory_bytes": None}) for one in proven]
    reasons: dict[int, str] = {}
    of_one_name = _best_of_each_name(proven, reasons)
    front = [one for one in of_one_name if not _dominator(one, of_one_name)]
    kept: list[ArtifactReport] = []
    for one in sorted(front, key=_simple_first):
        if all(advantages(one, other) for other in kept):
            kept.append(one)
    for one in of_one_name:
        if not any(one is other for other in kept):
            better = next(other for other in kept if not advantages(one, other))
            reasons[id(one)] = _why(one, better)
    return [reasons.get(id(one)) for one in proven]


def advantages(one: ArtifactReport, other: ArtifactReport) -> list[str]:
    """Lists the criteria in which an artifact is clearly better than another."""
    found = []
    if any(
        one.latency_ms[rows] < min(ms * (1 - LATENCY_SHARE), ms - LATENCY_MS)
        for rows, ms in other.latency_ms.items()
        if rows in one.latency_ms
    ):
        found.append("latency")
    if one.metric is not None and _clearly_better(one.metric, other.metric):
        found.append(one.metric.name)
    memory, others = one.peak_memory_bytes or 0, other.peak_memory_bytes or 0
    if memory < min(others * (1 - MEMORY_SHARE), others - MEMORY_BYTES):
        found.append("memory")
    if _exact(one) and not _exact(other):
        found.append("exactness")
    return found


def _best_of_each_name(
    proven: Sequence[ArtifactReport], reasons: dict[int, str]
) -> list[ArtifactReport]:
    """Keeps the fastest of each name, since a version has one per name; others get a reason."""
    best: dict[str, ArtifactReport] = {}
    for one in sorted(proven, key=lambda one: speed_key(one.method or "", one.latency_ms)):
        first = best.setdefault(one.name, one)
        if first is not one:
            reasons[id(one)] = f"method {first.method} is faster, and a version has one {one.name}"
    return [one for one in proven if best[one.name] is one]


def _dominator(one: ArtifactReport, others: Sequence[ArtifactReport]) -> ArtifactReport | None:
    """Returns an artifact that is no worse in any criterion and clearly better in one."""
    return next((o for o in others if _no_worse(o, one) and advantages(o, one)), None)


def _no_worse(one: ArtifactReport, other: ArtifactReport) -> bool:
    """Compares without margins, because only a strict comparison is an order with a first one."""
    if _exact(one) < _exact(other) or _merit(one) < _merit(other):
        return False
    if (one.peak_memory_bytes or 0) > (other.peak_memory_bytes or 0):
        return False
    return one.latency_ms.keys() == other.latency_ms.keys() and all(
        one.latency_ms[rows] <= ms for rows, ms in other.latency_ms.items()
    )


def _simple_first(one: ArtifactReport) -> tuple[tuple[int, int], tuple[float, str]]:
    return simplicity(one.kind, one.precision), speed_key(one.name, one.latency_ms)


def _why(dropped: ArtifactReport, kept: ArtifactReport) -> str:
    """Describes why the kept artifact makes the dropped one superfluous."""
    found = advantages(kept, dropped)
    if found:
        better = " and ".join(found)
        return f"dominated by {kept.name}: that is better in {better}, and worse in nothing"
    simpler = _simple_first(kept) < _simple_first(dropped)
    return f"no better than {kept.name} in anything" + (", which is simpler" if simpler else "")


def _exact(one: ArtifactReport) -> bool:
    return one.precision == "fp32"


def _clearly_better(one: MeasuredMetric, other: MeasuredMetric | None) -> bool:
    """Checks that a metric is beyond the better end of the other's interval."""
    if other is None:
        return True
    low, high = other.interval or (other.value, other.value)
    return one.value < low if one.better == "lower" else one.value > high


def _merit(one: ArtifactReport) -> float:
    """Returns the metric with a sign such that higher is better."""
    if one.metric is None:
        return float("-inf")
    return -one.metric.value if one.metric.better == "lower" else one.metric.value
