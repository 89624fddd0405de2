"""Which proven artifacts are worth publishing. Pure rules.

In: the reports of proven artifacts. Out: for each, why it is dropped, or None if it is kept.

An artifact is *clearly better* than another in a figure if it is better by more than noise: a run
of some batch size takes less time by a fifth and by 0.05 ms; the task's metric is better than the
95 % interval of the other's; peak memory is less by a tenth and by 4 MiB; or it computes in FP32,
and so gives the checkpoint's own answers, and the other one rounds.

Rules kept here: what is better in nothing and clearly worse in something is dropped; of what is
left, the simpler ones are kept, and others only if they are clearly better than each of those in
some figure. So something is always kept, no kept artifact stands in for another, and for each that
is dropped there is a kept one to which it is clearly better in nothing.
"""

from collections.abc import Sequence

from model_store.manifest import speed_key
from model_store.metric import MeasuredMetric
from training.auto.candidates import simplicity
from training.reporting.report import ArtifactReport

LATENCY_SHARE, LATENCY_MS = 0.2, 0.05
"""Medians of two attempts at the same file differ by less."""
MEMORY_SHARE, MEMORY_BYTES = 0.1, 4 * 2**20
"""Less memory than that decides nothing."""


def drop_reasons(proven: Sequence[ArtifactReport]) -> list[str | None]:
    """Says of each artifact why it is dropped; None for those that are kept.

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
    """The figures in which an artifact is clearly better than another."""
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
    """One of each name, the fastest, since a version has one of each; the others get a reason."""
    best: dict[str, ArtifactReport] = {}
    for one in sorted(proven, key=lambda one: speed_key(one.method or "", one.latency_ms)):
        first = best.setdefault(one.name, one)
        if first is not one:
            reasons[id(one)] = f"method {first.method} is faster, and a version has one {one.name}"
    return [one for one in proven if best[one.name] is one]


def _dominator(one: ArtifactReport, others: Sequence[ArtifactReport]) -> ArtifactReport | None:
    """Another that is no worse in any figure, noise or not, and clearly better in one."""
    return next((o for o in others if _no_worse(o, one) and advantages(o, one)), None)


def _no_worse(one: ArtifactReport, other: ArtifactReport) -> bool:
    """A strict reading, without margins: only so is it an order, in which something comes first."""
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
    """Names the kept one that makes a dropped one superfluous."""
    found = advantages(kept, dropped)
    if found:
        better = " and ".join(found)
        return f"dominated by {kept.name}: that is better in {better}, and worse in nothing"
    simpler = _simple_first(kept) < _simple_first(dropped)
    return f"no better than {kept.name} in anything" + (", which is simpler" if simpler else "")


def _exact(one: ArtifactReport) -> bool:
    return one.precision == "fp32"


def _clearly_better(one: MeasuredMetric, other: MeasuredMetric | None) -> bool:
    """Beyond the better end of the other's interval."""
    if other is None:
        return True
    low, high = other.interval or (other.value, other.value)
    return one.value < low if one.better == "lower" else one.value > high


def _merit(one: ArtifactReport) -> float:
    """The metric, turned so that more is better."""
    if one.metric is None:
        return float("-inf")
    return -one.metric.value if one.metric.better == "lower" else one.metric.value
