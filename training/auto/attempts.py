"""`export: auto`: makes and verifies suitable artifacts, and keeps the files of the best.

In: the trained model and the limits of the recipe. Out: the result of every candidate.

Rules: one attempt runs at a time, so that measurements do not disturb each other; each runs in its
own processes, so that a failure or crash does not affect the others.
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
from training.errors import IsolationError
from training.exporters.export import EXAMPLE_ROWS, Exported, export_entry
from training.loading.splits import Splits
from training.loop.loop import Trained
from training.recipe.kinds.export_kinds import notes
from training.recipe.kinds.onnx_kind import OnnxExport
from training.recipe.parts.auto_export import AutoExport
from training.recipe.recipe import Recipe
from training.reporting.report import ArtifactReport
from training.tracking.progress import say
from training.verification.departure import with_departure
from training.verification.verify import Reference, latency_apart, verify_apart

TRIES = "tries"
"""Parent folder of the candidates' folders."""
SHORTEST_LIMIT_S = 0.1
"""Minimum for verifying an artifact that took all its time to make."""


def prove_auto(
    recipe: Recipe,
    auto: AutoExport,
    trained: Trained,
    splits: Splits,
    expected: Reference,
    folder: Path,
    console: Console,
) -> Trial:
    """Tries artifacts that suit the model and this machine; kept ones end up in the folder.

    Args:
        recipe: recipe that builds the model and limits each attempt.
        auto: artifacts that may be tried, and the budget.
        trained: trained model.
        splits: data; the train split gives examples and calibration rows.
        expected: reference answers of the checkpoint.
        folder: destination of the files.
        console: console for progress.
    """
    example = {name: array[:EXAMPLE_ROWS] for name, array in splits.train.inputs.items()}
    contents = replace(
        model_contents(trained.model, example, trained.signature),
        qat=trained.qat_weights is not None,
    )
    offered = candidates(auto, contents, this_machine())
    for note in notes([one.entry for one in offered]):
        say(console, note)
    tries = folder / TRIES
    with open_trial_table(console, [one.label for one in offered]) as table:
        attempts = _IsolatedAttempts(recipe, trained, splits, expected, tries, table)
        limit_s = recipe.export_limits.time_s
        found = run_trial(offered, attempts, auto.budget_s, limit_s, table)
    lay_out(found, tries, folder)
    return found


class _IsolatedAttempts:
    """Runs attempts in separate processes; see `training.auto.trial.Attempts`."""

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
        # The folder of the candidate that is this graph: other candidates reuse it, or create it.
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
        except IsolationError:  # it was verified before: a timing failure is not its fault
            return {}


def folder_of(candidate: Candidate, tries: Path) -> Path:
    """Returns the candidate's own folder, since two methods of one name write the same file."""
    return tries / candidate.label.replace(" ", "-")


def lay_out(found: Trial, tries: Path, folder: Path) -> None:
    """Moves the files of kept candidates to the version's folder, and deletes the others.

    Args:
        found: results of the candidates.
        tries: parent folder of the candidates' folders.
        folder: destination of the files.
    """
    for candidate, report in found.tried:
        if report.refusal is None and report.dropped is None:
            for name in filter(None, (report.file, report.weights_file)):
                (folder_of(candidate, tries) / name).rename(folder / name)
    shutil.rmtree(tries)
