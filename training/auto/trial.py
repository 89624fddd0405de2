"""Tries candidates one after the other within a budget, and keeps only worthwhile ones.

In: candidates, and an object that makes and verifies them. Out: the report of every attempt, in
which losers are marked as dropped.

Rules: no attempt starts after the budget is spent, and none may exceed the rest of it, except the
first, which has all the time of `export_limits`, so that a small budget yields an artifact.
Verified candidates are timed again at the end, in reverse order, and the lower latency counts:
other load on the machine can only have slowed them down.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from training.auto.candidates import Candidate
from training.auto.pareto_front import drop_reasons
from training.auto.trial_table import TIMING, TrialTable
from training.reporting.report import ArtifactReport, AutoReport, NotTried


class Attempts(Protocol):
    """Makes, verifies and times candidates."""

    def prove(self, candidate: Candidate, time_limit_s: float | None) -> ArtifactReport:
        """Makes and verifies one within some seconds; None for the limit of `export_limits`."""

    def time_again(self, candidate: Candidate) -> dict[int, float]:
        """Measures ms per run, by batch size, of a verified candidate; empty if it fails."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of all candidates."""

    tried: tuple[tuple[Candidate, ArtifactReport], ...]
    """Candidates with their reports, in the order they were tried."""
    auto: AutoReport

    def artifacts(self) -> tuple[ArtifactReport, ...]:
        """Returns only the reports."""
        return tuple(report for _, report in self.tried)


def run_trial(
    offered: Sequence[Candidate],
    attempts: Attempts,
    budget_s: float,
    time_limit_s: float,
    table: TrialTable,
    clock: Callable[[], float] = time.monotonic,
) -> Trial:
    """Tries candidates until all are tried or the budget is spent, and drops the losers.

    Args:
        offered: candidates in order of trial.
        attempts: object that makes, verifies and times them.
        budget_s: seconds for all candidates.
        time_limit_s: seconds for one candidate, if the budget allows.
        table: display of the progress.
        clock: monotonic clock in seconds.
    """
    started, tried, not_tried = clock(), dict[Candidate, ArtifactReport](), list[NotTried]()
    for candidate in offered:
        left_s = budget_s - (clock() - started)
        reason = candidate.left_out
        if reason is None and tried and left_s <= 0:
            reason = f"the budget of {budget_s:g} s was spent; raise export.auto.budget_s to try it"
        if reason is not None:
            not_tried.append(_not_tried(candidate, reason))
            table.left_out(candidate.label, reason)
            continue
        limit_s = min(time_limit_s, left_s) if tried else None
        began = clock()
        report = attempts.prove(candidate, limit_s)
        took_s = clock() - began
        cut_short = limit_s is not None and limit_s < min(time_limit_s, took_s)
        tried[candidate] = _timed(report, took_s, cut_short)
        table.done(candidate.label, tried[candidate])
    _time_again(tried, attempts, table)
    _drop_losers(tried, table)
    spent_s = round(clock() - started, 3)
    auto = AutoReport(budget_s=budget_s, spent_s=spent_s, not_tried=tuple(not_tried))
    return Trial(tuple(tried.items()), auto)


def _timed(report: ArtifactReport, took_s: float, cut_short: bool) -> ArtifactReport:
    """Adds the seconds that it took, and mentions the budget if that cut the attempt short."""
    refusal = report.refusal
    if refusal is not None and cut_short:
        refusal += "; that was all that was left of export.auto.budget_s"
    return report.model_copy(update={"took_s": round(took_s, 3), "refusal": refusal})


def _time_again(
    tried: dict[Candidate, ArtifactReport], attempts: Attempts, table: TrialTable
) -> None:
    """Times again in reverse order, so that runs far apart in time before are now close."""
    proven = [(one, report) for one, report in tried.items() if report.refusal is None]
    for candidate, report in reversed(proven if len(proven) > 1 else []):
        table.state(candidate.label, TIMING)
        again = attempts.time_again(candidate)
        lower = {rows: min(ms, again.get(rows, ms)) for rows, ms in report.latency_ms.items()}
        tried[candidate] = report.model_copy(update={"latency_ms": lower})
        table.done(candidate.label, tried[candidate])


def _drop_losers(tried: dict[Candidate, ArtifactReport], table: TrialTable) -> None:
    proven = [(one, report) for one, report in tried.items() if report.refusal is None]
    reasons = drop_reasons([report for _, report in proven])
    for (candidate, report), reason in zip(proven, reasons, strict=True):
        if reason is not None:
            tried[candidate] = report.model_copy(update={"dropped": reason})
            table.done(candidate.label, tried[candidate])


def _not_tried(candidate: Candidate, reason: str) -> NotTried:
    entry = candidate.entry
    return NotTried(name=entry.name, method=getattr(entry, "method", None), reason=reason)
