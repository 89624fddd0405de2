"""The judge: counts and limits in, a verdict out. Pure.

A call takes some 25 ms, and may run in a thread.

Rules: a guard is broken once the e-value against the candidate has reached 1 / (the guard's part
of the risk), at any look. The candidate is promoted if for each guard the e-value for it is at
least 1 / risk at this look; so a version at the limit of one guard is promoted with a probability
of at most the risk, without sharing it (Berger, "Multiparameter hypothesis testing and acceptance
sampling", 1982). Neither happens for lack of traffic.
"""

import math

from model_store.rollouts.amounts import share_text
from model_store.rollouts.finding_text import OF_BOTH, figures_text
from model_store.rollouts.guards import (
    DisagreementGuard,
    Guards,
    LatencyGuard,
    OutputGuard,
    RateGuard,
)
from services.rollouts.evidence.count_arrays import CountArrays, arrays_of
from services.rollouts.evidence.effects import figures_of
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence.traffic_needed import factor_needed, observed, with_ideal_traffic
from services.rollouts.evidence.verdict import Decision, Finding, Verdict
from services.rollouts.evidence.weighing import weigh

UNITS = {
    "errors": "requests",
    "nan": "requests",
    "outputs": "requests",
    "disagreement": "mirrored pairs",
    "latency": "pairs of latencies",
}


def judge(evidence: Evidence, guards: Guards, *, interval_risk: float = 0.05) -> Verdict:
    """Judges a candidate by all counts so far.

    Args:
        evidence: merged counts, a copy to which nobody adds meanwhile; its peaks count too.
        guards: the limits, which stay the same for a whole rollout.
        interval_risk: probability that an interval of any guard's figures ever misses its value.
    """
    counts = arrays_of(evidence, guards)
    parts = guards.shares_of_risk()
    risk = interval_risk / max(len(parts), 1)
    found = tuple(_finding(n, counts, guards, evidence, parts[n], risk) for n in parts)
    broken = [finding for finding in found if finding.state == "broken"]
    if broken:
        worst = max(broken, key=lambda one: one.log_e_against - one.log_e_to_roll_back)
        return _verdict("roll_back", _broken(worst, guards), worst.guard, found)
    waiting = [finding for finding in found if finding.state == "open"]
    if not waiting:
        reason = "every guard is proven to be kept" if found else "no guard is set"
        return _verdict("promote" if found else "undecided", reason, None, found)
    return _undecided(waiting, found, int(counts.requests.sum()))


def remembered(evidence: Evidence, verdict: Verdict) -> Evidence:
    """Returns evidence whose peaks are those of the verdict on it."""
    return Evidence(dict(evidence.counts), evidence.peaks | verdict.peaks)


def _finding(
    name: str,
    counts: CountArrays,
    guards: Guards,
    evidence: Evidence,
    part: float,
    interval_risk: float,
) -> Finding:
    weighed = weigh(name, counts, guards)
    now = float(weighed.against)
    against = max(now, evidence.peaks.get(name, -math.inf))
    supporting = float(weighed.supporting)
    seen = observed(name, counts)
    broken, kept = against >= -math.log(part), supporting >= -math.log(guards.risk)
    more: int | None = 0
    if not kept:
        tried = counts if seen else with_ideal_traffic(counts)
        factor = factor_needed(name, tried, guards)
        more = None if factor is None else math.ceil(factor * observed(name, tried)) - seen
    return Finding(
        guard=name,
        state="broken" if broken else "kept" if kept else "open",
        log_e_against=against,
        log_e_now=now,
        log_e_to_roll_back=-math.log(part),
        log_e_for=supporting,
        log_e_to_promote=-math.log(guards.risk),
        observed=seen,
        unit=UNITS[name],
        more=more,
        figures=figures_of(name, counts, guards, interval_risk),
    )


def _broken(finding: Finding, guards: Guards) -> str:
    """Describes a broken guard: its figures, its limit, and the e-value."""
    against, enough = _e_value(finding.log_e_against), _e_value(finding.log_e_to_roll_back)
    texts = (
        figures_text(finding.guard, finding.figures),
        f"allowed: {_limit(getattr(guards, finding.guard))}",
        f"e-value {against}, {enough} is enough",
    )
    return f"the guard '{finding.guard}' is broken: {'; '.join(filter(None, texts))}"


def _limit(guard: object) -> str:
    match guard:
        case RateGuard():
            return f"{guard.ratio:g} times the live rate, or {share_text(guard.rate)}"
        case DisagreementGuard():
            return share_text(guard.limit)
        case LatencyGuard():
            return f"a ratio of {guard.ratio:g}"
        case OutputGuard():
            return f"{100 * guard.difference:g} points"
    raise AssertionError(f"{guard} is no guard")


def _undecided(waiting: list[Finding], found: tuple[Finding, ...], requests: int) -> Verdict:
    """Says which guard needs the most traffic, and how much."""
    unseen = [one for one in waiting if not one.observed]
    endless = [one for one in waiting if one.more is None]
    slowest = max(waiting, key=lambda one: (one.more or 0) / max(one.observed, 1))
    if unseen:
        slowest = unseen[0]
        unit = f"{slowest.unit}{OF_BOTH.get(slowest.unit, '')}"
        least = "" if slowest.more is None else f"; at least {slowest.more:,} {unit} are needed"
        reason = f"{slowest.guard}: no {slowest.unit} yet{least}"
        more = slowest.more if slowest.unit == "requests" else None
        return _verdict("undecided", reason, slowest.guard, found, more)
    if endless:
        slowest = endless[0]
        so_far = f"{slowest.observed:,} {slowest.unit} so far"
        reason = f"{slowest.guard}: with the figures of the {so_far}, no number would be enough"
        return _verdict("undecided", reason, slowest.guard, found)
    assert slowest.more is not None
    unit = f"{slowest.unit}{OF_BOTH.get(slowest.unit, '')}"
    reason = f"{slowest.guard}: {slowest.more:,} more {unit} are expected to be needed"
    more = math.ceil(slowest.more / slowest.observed * requests) if requests else None
    return _verdict("undecided", reason, slowest.guard, found, more)


def _e_value(logarithm: float) -> str:
    return f"{math.exp(min(logarithm, 700)):,.4g}"


def _verdict(
    decision: Decision,
    reason: str,
    guard: str | None,
    findings: tuple[Finding, ...],
    more_requests: int | None = None,
) -> Verdict:
    return Verdict(
        decision=decision,
        reason=reason,
        guard=guard,
        more_requests=more_requests,
        findings=findings,
    )
