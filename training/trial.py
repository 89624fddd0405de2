"""`export: auto`: makes and proves one candidate after the other, and keeps what is worth it.

In: the trained model and what the recipe allows. Out: the report of every attempt, in which what
lost is marked as dropped, and the files of what is kept.

Rules kept here: one attempt at a time, so that no figure is of two that disturbed each other; none
is begun once the budget is spent, and none takes longer than what is left of it, but for the first,
which has all the time that `export_limits` gives: a small budget must not end with nothing; an
attempt that fails or dies costs nobody else anything.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from training.auto_export import AutoExport
from training.candidates import Candidate, candidates
from training.datasets import Splits
from training.export import DEPRECATION_NOTE, EXAMPLE_ROWS, export_entry
from training.export_entries import OnnxExport, TorchScriptExport
from training.loop import Trained
from training.model_contents import model_contents, this_machine
from training.pareto_front import drop_reasons
from training.progress import say
from training.recipe import Recipe
from training.report import ArtifactReport, AutoReport, NotTried
from training.trial_table import EXPORTING, VERIFYING, TrialTable, open_trial_table
from training.verify import Reference, verify_apart

TRIES = "tries"
"""The folder in which every candidate has one of its own."""
SHORTEST_LIMIT_S = 0.1
"""For proving what took all its time to make."""
Attempt = Callable[[Candidate, float | None], ArtifactReport]
"""Makes and proves a candidate within some seconds; None for as long as `export_limits` says."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of the candidates."""

    tried: tuple[tuple[Candidate, ArtifactReport], ...]
    """In the order they were tried."""
    auto: AutoReport

    def artifacts(self) -> tuple[ArtifactReport, ...]:
        """The reports alone."""
        return tuple(report for _, report in self.tried)


def prove_auto(
    recipe: Recipe,
    auto: AutoExport,
    trained: Trained,
    splits: Splits,
    expected: Reference,
    folder: Path,
    console: Console,
) -> Trial:
    """Tries what suits the model and this machine; what is kept lies in the folder afterwards.

    Args:
        recipe: builds the model, and has the limits of each attempt.
        auto: what may be tried, and for how long.
        trained: the model.
        splits: the train split gives examples and calibration rows.
        expected: the checkpoint's answers.
        folder: where the files go.
        console: shows what is being tried.
    """
    example = {name: array[:EXAMPLE_ROWS] for name, array in splits.train.inputs.items()}
    contents = model_contents(trained.model, example, trained.signature)
    offered = candidates(auto, contents, this_machine())
    if any(isinstance(one.entry, TorchScriptExport) for one in offered):
        say(console, DEPRECATION_NOTE)
    tries = folder / TRIES
    graph = tries / OnnxExport().name / OnnxExport().file
    with open_trial_table(console, [one.label for one in offered]) as table:

        def attempt(candidate: Candidate, time_limit_s: float | None) -> ArtifactReport:
            started, own = time.monotonic(), _folder_of(candidate, tries)
            for needed in (own, graph.parent):
                needed.mkdir(parents=True, exist_ok=True)
            table.state(candidate.label, EXPORTING)
            exported = export_entry(
                recipe,
                trained,
                splits,
                candidate.entry,
                own,
                graph=graph,
                time_limit_s=time_limit_s,
            )
            table.state(candidate.label, VERIFYING)
            if time_limit_s is not None:
                left_s = time_limit_s - (time.monotonic() - started)
                time_limit_s = max(left_s, SHORTEST_LIMIT_S)
            return verify_apart(exported, expected, recipe.export_limits, time_limit_s)

        found = run_trial(offered, attempt, auto.budget_s, recipe.export_limits.time_s, table)
    _lay_out(found, tries, folder)
    return found


def run_trial(
    offered: Sequence[Candidate],
    attempt: Attempt,
    budget_s: float,
    time_limit_s: float,
    table: TrialTable,
    clock: Callable[[], float] = time.monotonic,
) -> Trial:
    """Tries candidates until all are tried or the budget is spent, and drops what lost.

    Args:
        offered: in the order they are to be tried.
        attempt: makes and proves one.
        budget_s: seconds for all of them.
        time_limit_s: seconds for one, where more is left.
        table: told what becomes of each.
        clock: seconds that only grow.
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
        report = attempt(candidate, limit_s)
        took_s = clock() - began
        cut_short = limit_s is not None and limit_s < min(time_limit_s, took_s)
        tried[candidate] = _timed(report, took_s, cut_short)
        table.done(candidate.label, tried[candidate])
    _drop_losers(tried, table)
    spent_s = round(clock() - started, 3)
    auto = AutoReport(budget_s=budget_s, spent_s=spent_s, not_tried=tuple(not_tried))
    return Trial(tuple(tried.items()), auto)


def _timed(report: ArtifactReport, took_s: float, cut_short: bool) -> ArtifactReport:
    """With the seconds that it took, and with their part in a refusal."""
    refusal = report.refusal
    if refusal is not None and cut_short:
        refusal += "; that was all that was left of export.auto.budget_s"
    return report.model_copy(update={"took_s": round(took_s, 3), "refusal": refusal})


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


def _folder_of(candidate: Candidate, tries: Path) -> Path:
    """One for each, since two methods of one name write the same file."""
    return tries / candidate.label.replace(" ", "-")


def _lay_out(found: Trial, tries: Path, folder: Path) -> None:
    """Moves the files of what is kept to where the version's files are, and deletes the others."""
    for candidate, report in found.tried:
        if report.refusal is None and report.dropped is None:
            for name in filter(None, (report.file, report.weights_file)):
                (_folder_of(candidate, tries) / name).rename(folder / name)
    shutil.rmtree(tries)
