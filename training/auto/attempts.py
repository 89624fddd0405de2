"""`export: auto`: makes and proves what suits the model, and leaves the files of what is kept.

In: the trained model and what the recipe allows. Out: what became of every candidate.

Rules kept here: one attempt at a time, so that no figure is of two that disturbed each other, each
in processes of its own: one that fails or dies costs nobody else anything.
"""

import shutil
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from training.auto.candidates import Candidate, candidates
from training.auto.model_contents import model_contents, this_machine
from training.auto.trial import Trial, run_trial
from training.auto.trial_table import EXPORTING, VERIFYING, TrialTable, open_trial_table
from training.datasets import Splits
from training.errors import IsolationError
from training.exporters.export import DEPRECATION_NOTE, EXAMPLE_ROWS, Exported, export_entry
from training.loop.loop import Trained
from training.recipe.parts.auto_export import AutoExport
from training.recipe.parts.export_entries import OnnxExport, TorchScriptExport
from training.recipe.recipe import Recipe
from training.reporting.report import ArtifactReport
from training.tracking.progress import say
from training.verification.departure import with_departure
from training.verification.verify import Reference, latency_apart, verify_apart

TRIES = "tries"
"""The folder in which every candidate has one of its own."""
SHORTEST_LIMIT_S = 0.1
"""For proving what took all its time to make."""


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
    contents = replace(
        model_contents(trained.model, example, trained.signature),
        qat=trained.qat_weights is not None,
    )
    offered = candidates(auto, contents, this_machine())
    if any(isinstance(one.entry, TorchScriptExport) for one in offered):
        say(console, DEPRECATION_NOTE)
    tries = folder / TRIES
    with open_trial_table(console, [one.label for one in offered]) as table:
        attempts = _IsolatedAttempts(recipe, trained, splits, expected, tries, table)
        limit_s = recipe.export_limits.time_s
        found = run_trial(offered, attempts, auto.budget_s, limit_s, table)
    lay_out(found, tries, folder)
    return found


class _IsolatedAttempts:
    """Attempts in processes of their own; see `training.auto.trial.Attempts`."""

    def __init__(
        self,
        recipe: Recipe,
        trained: Trained,
        splits: Splits,
        expected: Reference,
        tries: Path,
        table: TrialTable,
    ) -> None:
        self._recipe, self._trained, self._splits = recipe, trained, splits
        self._expected, self._tries, self._table = expected, tries, table
        # The folder of the candidate that is this graph: others find it, or make it.
        self._graph = tries / OnnxExport().name / OnnxExport().file
        self._graph.parent.mkdir(parents=True)
        self._exported: dict[Candidate, Exported] = {}

    def prove(self, candidate: Candidate, time_limit_s: float | None) -> ArtifactReport:
        """See `training.auto.trial.Attempts.prove`."""
        started, own = time.monotonic(), folder_of(candidate, self._tries)
        own.mkdir(exist_ok=True)
        self._table.state(candidate.label, EXPORTING)
        exported = export_entry(
            self._recipe,
            self._trained,
            self._splits,
            candidate.entry,
            own,
            graph=self._graph,
            time_limit_s=time_limit_s,
        )
        self._exported[candidate] = exported
        self._table.state(candidate.label, VERIFYING)
        if time_limit_s is not None:
            left_s = time_limit_s - (time.monotonic() - started)
            time_limit_s = max(left_s, SHORTEST_LIMIT_S)
        limits = self._recipe.export_limits
        report = verify_apart(exported, self._expected, limits, time_limit_s)
        return with_departure(report, exported, self._expected, self._recipe, self._trained.weights)

    def time_again(self, candidate: Candidate) -> dict[int, float]:
        """See `training.auto.trial.Attempts.time_again`."""
        limits = self._recipe.export_limits
        try:
            return latency_apart(self._exported[candidate], self._expected, limits)
        except IsolationError:  # it was proven: what it says of the machine is not its fault
            return {}


def folder_of(candidate: Candidate, tries: Path) -> Path:
    """One for each, since two methods of one name write the same file."""
    return tries / candidate.label.replace(" ", "-")


def lay_out(found: Trial, tries: Path, folder: Path) -> None:
    """Moves the files of what is kept to where the version's files are, and deletes the others.

    Args:
        found: what became of the candidates.
        tries: the folder in which each has one of its own.
        folder: where the files go.
    """
    for candidate, report in found.tried:
        if report.refusal is None and report.dropped is None:
            for name in filter(None, (report.file, report.weights_file)):
                (folder_of(candidate, tries) / name).rename(folder / name)
    shutil.rmtree(tries)
