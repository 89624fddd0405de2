"""Runs a search: parallel trials up to a total number; then the best one is published.

        <sweeps>/<name>-<digest>/study.journal   values and results of all trials
                                /sweep.json      the same for other programs
                                /report.html     the same for people, with plots
                                /best.yaml       the recipe of the best trial
                                /runs/           a folder for each run, see `training.run_folder`
                                /trials/003.log  output of trial 3

In: a recipe and its search space. Out: a `SweepRecord`.

Rules: the recipe, the parameters and the metric determine the folder, so that the same command
resumes an interrupted search; `model.from` is resolved once, so that all trials start from one
version; a failed trial does not affect the others; the best trial is not trained again: its
checkpoint is published.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from rich.console import Console

from model_store.store import ModelStore, Sign
from training.errors import DataError, RecipeError, SweepError
from training.network.stored_version import with_parent_number
from training.recipe.destination import check_destination
from training.recipe.file import resolved_yaml
from training.recipe.recipe import Recipe
from training.run_folder import locked_folder, write_atomically
from training.sweep.page import sweep_page
from training.sweep.parameter import Parameter, check_parameters, with_values
from training.sweep.records import Published, SweepRecord, TrialRecord
from training.sweep.study import Asked, Study
from training.sweep.table import SweepTable, open_sweep_table
from training.sweep.trial_process import (
    Epoch,
    Finished,
    Pruned,
    Told,
    TrialFailed,
    TrialProcess,
    facts_of,
)
from training.tracking.progress import say

RECORD, PAGE, BEST, RUNS, LOGS = "sweep.json", "report.html", "best.yaml", "runs", "trials"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The search space, the metric and the limits of a search."""

    base: Recipe
    """Recipe common to all trials."""
    parameters: tuple[Parameter, ...]
    """Parameters to search."""
    metric: str
    """Metric that compares trials, on validation rows."""
    trials: int
    """Total number of trials, including those of earlier calls."""
    processes: int = 1
    """Number of parallel trials."""
    prune: bool = True
    """True if unpromising trials end early."""
    timeout_s: float | None = None
    """Time limit of this call in seconds; None for no limit. The next call resumes trials that are
    still running then."""
    trial_timeout_s: float | None = None
    """Time limit of one trial in seconds; a longer one fails."""
    trial_memory_gib: float = 16.0
    """Memory limit of one trial; a trial that needs more fails."""
    weights_store: str | None = None
    """URL of the store with the versions of `model.from`; None if no trial has any."""

    def settled(self) -> "SweepPlan":
        """Returns the plan with `model.from` resolved to a version number, if it is given.

        Raises:
            RecipeError: the model, version or alias does not exist, or no store is given.
            StoreError: the store cannot be read.
        """
        if self.base.model.from_ is None:
            return self
        if self.weights_store is None:
            raise RecipeError(f"model.from is {self.base.model.from_}, and no store is given")
        base = with_parent_number(self.base, ModelStore(self.weights_store))
        return replace(self, base=base)

    def folder(self, sweeps_dir: Path) -> Path:
        """Returns the folder of this search."""
        texts = (self.base.training_digest(), self.metric, *sorted(map(str, self.parameters)))
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
        return sweeps_dir / f"{self.base.name}-{digest[:12]}"

    def check(self) -> None:
        """Rejects a plan that makes every trial invalid.

        Raises:
            RecipeError: see `check_parameters`; or the metric is not one of validation rows.
        """
        if self.base.weights is not None:
            raise RecipeError(
                "train is none, so a search has no training to vary; use flambeau train"
            )
        if not self.metric.startswith("val/"):
            raise RecipeError(
                f"--metric is '{self.metric}'; trials are compared on validation rows, as by "
                "val/accuracy, so that test rows stay unseen"
            )
        check_parameters(self.base, self.parameters)


@dataclass(slots=True)
class _Running:
    asked: Asked
    recipe: Recipe
    process: TrialProcess


@dataclass(slots=True)
class Search:
    """Runs the trials of a plan.

    Args:
        plan: plan of the search.
        folder: folder of the search.
        study: study in the same folder.
        table: display of the progress.
    """

    plan: SweepPlan
    folder: Path
    study: Study
    table: SweepTable
    _running: dict[Connection, _Running] = field(default_factory=dict)

    def run(self) -> None:
        """Runs trials up to the total or the time limit; terminates them when interrupted."""
        limit_s = self.plan.timeout_s
        ends_at = None if limit_s is None else time.monotonic() + limit_s
        try:
            while True:
                over = ends_at is not None and time.monotonic() >= ends_at
                if over:
                    return
                self._fill()
                if not self._running:
                    return
                for connection in wait(list(self._running), timeout=self._wait_s(ends_at)):
                    assert isinstance(connection, Connection), "only trials are waited for"
                    self._hear(self._running[connection])
                self._end_overdue()
        finally:
            for running in self._running.values():
                running.process.end()
            self._running.clear()

    def _fill(self) -> None:
        """Starts trials up to the parallel limit."""
        while len(self._running) < self.plan.processes and self.study.room(self.plan.trials):
            asked = self.study.ask()
            if asked is not None:
                self._start(asked)
            self._show()

    def _start(self, asked: Asked) -> None:
        try:
            recipe = with_values(self.plan.base, asked.values)
        except RecipeError as error:
            self.study.failed(asked, str(error), {})
            return
        process = TrialProcess(
            recipe,
            self.folder / RUNS,
            self.folder / LOGS / f"{asked.number:03d}.log",
            threads=max(1, len(os.sched_getaffinity(0)) // self.plan.processes),
            memory_gib=self.plan.trial_memory_gib,
            weights_store=self.plan.weights_store,
        )
        self._running[process.connection] = _Running(asked, recipe, process)

    def _wait_s(self, ends_at: float | None) -> float | None:
        """Returns the seconds to the next limit; None if there is none."""
        limits = [] if ends_at is None else [ends_at]
        if self.plan.trial_timeout_s is not None:
            started = [running.process.started_at for running in self._running.values()]
            limits.append(min(started) + self.plan.trial_timeout_s)
        return max(min(limits) - time.monotonic(), 0) if limits else None

    def _hear(self, running: _Running) -> None:
        told = running.process.hear()
        if isinstance(told, Epoch):
            value = told.metrics.get(self.plan.metric)
            if value is None:
                self._close(running, TrialFailed(self._no_metric(told.metrics)))
                return
            hopeless = running.asked.hopeless_after(told.number, value)
            last = told.number >= running.recipe.train.epochs
            running.process.answer(go_on=last or not hopeless)
            self._show()
        else:
            self._close(running, told)

    def _end_overdue(self) -> None:
        limit_s = self.plan.trial_timeout_s
        for running in list(self._running.values()):
            if limit_s is not None and running.process.took_s > limit_s:
                self._close(running, TrialFailed(f"it took longer than {limit_s:g} s"))

    def _close(self, running: _Running, told: Told) -> None:
        """Records the result of a trial."""
        asked, facts = running.asked, facts_of(told, running.process.took_s)
        del self._running[running.process.connection]
        running.process.end()
        match told:
            case Finished():
                self.study.done(asked, told.metrics[self.plan.metric], facts)
            case Pruned():
                self.study.pruned(asked, "worse than the median of the others", facts)
            case TrialFailed():
                self.study.failed(asked, told.reason, facts)
        self._show()

    def _no_metric(self, metrics: Mapping[str, float]) -> str:
        known = ", ".join(sorted(name for name in metrics if name.startswith("val/")))
        return f"it has no metric {self.plan.metric}; it has: {known}"

    def _show(self) -> None:
        self.table.show(self.study.records())


def sweep(
    plan: SweepPlan,
    sweeps_dir: Path,
    store_url: str | None,
    console: Console | None = None,
    sign: Sign | None = None,
) -> SweepRecord:
    """Searches, and publishes the best trial.

    Args:
        plan: plan of the search.
        sweeps_dir: parent folder of all searches.
        store_url: URL of the model store; None publishes nothing.
        console: console for progress; standard output by default.
        sign: signer of the version; None leaves it unsigned.

    Returns:
        All trials, including those of earlier calls.

    Raises:
        RecipeError: a parameter is unknown or rejected, the version of `model.from` does not exist,
            or the recipe names a registry; nothing has run.
        RunBusyError: another process runs the same search.
        SweepError: no trial is done, so there is nothing to publish.
        TrainingError: the best trial cannot be exported or verified.
        StoreError: the store cannot be opened or written; the trials stay.
    """
    console = console or Console()
    plan = plan.settled()
    plan.check()
    if store_url is not None:
        check_destination(plan.base)
    folder = plan.folder(sweeps_dir)
    with locked_folder(folder):
        before = _published(folder)
        study = Study(
            folder, plan.base.better_of(plan.metric), plan.parameters, plan.base.seed, plan.prune
        )
        try:
            with open_sweep_table(console, plan.metric, plan.parameters) as table:
                table.show(study.records())
                Search(plan, folder, study, table).run()
        finally:
            record = _record(plan, study, before)
            write_files(folder, record)
        say(console, f"search in {folder}: {PAGE}, {RECORD}")
        best = record.best()
        if best is None:
            raise SweepError(_nothing_done(record, folder))
        recipe = with_values(plan.base, best.values)
        write_atomically(folder / BEST, resolved_yaml(recipe).encode())
        say(console, f"the best is {best.words(plan.metric)}; its recipe is {folder / BEST}")
        if store_url is None:
            return record
        record = record.model_copy(
            update={"published": _publish(recipe, best, before, folder, store_url, console, sign)}
        )
        write_files(folder, record)
    return record


def write_files(folder: Path, record: SweepRecord) -> None:
    """Writes the record and its page."""
    write_atomically(folder / RECORD, record.to_json())
    write_atomically(folder / PAGE, sweep_page(record).encode())


def _record(plan: SweepPlan, study: Study, published: Published | None) -> SweepRecord:
    return SweepRecord(
        name=plan.base.name,
        metric=plan.metric,
        better=plan.base.better_of(plan.metric),
        parameters=tuple(str(parameter) for parameter in plan.parameters),
        trials=tuple(study.records()),
        importances=study.importances(),
        published=published,
    )


def _published(folder: Path) -> Published | None:
    """Returns the version that an earlier call published."""
    path = folder / RECORD
    return SweepRecord.model_validate_json(path.read_bytes()).published if path.exists() else None


class _SameRun:
    """The watcher of the best trial's export: it requires the trial's own run folder.

    Args:
        folder: name of the trial's run folder.
    """

    stop_asked = False

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def begin(self, folder: Path) -> None:
        """See `training.watcher.Watcher.begin`."""
        if folder.name != self._folder:
            raise DataError(
                "the data, the preprocessing or what model.from names has changed since the best "
                "trial was trained; search again with another --sweeps-dir"
            )

    def started(self) -> None:
        """See `training.watcher.Watcher.started`."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.watcher.Watcher.end_epoch`."""

    def promoted(self, text: str) -> None:
        """See `training.watcher.Watcher.promoted`."""


def _publish(
    recipe: Recipe,
    best: TrialRecord,
    before: Published | None,
    folder: Path,
    store_url: str,
    console: Console,
    sign: Sign | None,
) -> Published:
    """Exports and verifies the best trial's checkpoint, unless it is published already."""
    from training.pipeline import run

    model = recipe.publish.model
    if before and (before.trial, before.store, before.model) == (best.number, store_url, model):
        say(console, f"trial {best.number} is published already, as {model} {before.version}")
        return before
    say(console, f"exporting, verifying and publishing trial {best.number} as {model}")
    manifest = run(
        recipe,
        store_url,
        folder / RUNS,
        resume=True,
        console=console,
        sign=sign,
        watcher=_SameRun(best.folder),
    )
    return Published(trial=best.number, store=store_url, model=model, version=manifest.version)


def _nothing_done(record: SweepRecord, folder: Path) -> str:
    reasons = [trial.reason for trial in record.trials if trial.state == "failed"]
    if not reasons:
        return "no trial is done; run the same command again to continue"
    different = list(dict.fromkeys(reasons))
    return (
        f"no trial is done: {len(reasons)} of {len(record.trials)} failed, as by: "
        f"{'; '.join(map(str, different[:3]))}; their output is in {folder / LOGS}"
    )
