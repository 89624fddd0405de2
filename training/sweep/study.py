"""The study of a search: proposes the next values, and prunes unpromising trials.

Optuna decides (Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework",
2019): tree-structured Parzen estimators propose values; the median of the other trials at the same
epoch prunes. Only this file imports it.

Rules: one process writes the study, one journal line at a time, so that it stays readable after any
abort; an interrupted trial is resumed with its values and its number, and is counted once.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import get_param_importances
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from model_store.metric import Better
from training.sweep.parameter import Parameter, Value
from training.sweep.records import State, TrialRecord

NAME = "sweep"
JOURNAL = "study.journal"
TRIALS_BEFORE_PRUNING = 4
"""Trials required before medians are compared; fewer are not meaningful."""
FIRST_PRUNING_EPOCH = 2
"""First epoch that may prune; the first epoch is too noisy."""
NUMBER, REASON, EPOCHS, TOOK_S, FOLDER, LAST = (
    "number",
    "reason",
    "epochs",
    "took_s",
    "folder",
    "last",
)
"""Attributes of a trial beside Optuna's own. A failed trial without a reason was interrupted."""
_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Asked:
    """A trial to run.

    Args:
        trial: trial of Optuna.
        number: number of the trial, counted from 1.
        values: values by path.
    """

    def __init__(self, trial: Trial, number: int, values: dict[str, Value]) -> None:
        self.trial, self.number, self.values = trial, number, values
        self._told: set[int] = set()

    def hopeless_after(self, epoch: int, value: float) -> bool:
        """Records the metric of an epoch, and returns True if the trial should end.

        Args:
            epoch: epoch counted from 1; one reported again after a resumption has no effect.
            value: value of the metric.
        """
        self.trial.set_user_attr(EPOCHS, epoch)
        if epoch in self._told or not math.isfinite(value):
            return False
        self._told.add(epoch)
        self.trial.set_user_attr(LAST, value)
        self.trial.report(value, epoch)
        return self.trial.should_prune()


class Study:
    """The trials of a search, stored in its folder.

    Args:
        folder: existing folder of the search; the journal in it is created if missing.
        better: direction of the metric that compares trials.
        parameters: search space.
        seed: seed of the sampler.
        prune: True if unpromising trials end early.
    """

    def __init__(
        self, folder: Path, better: Better, parameters: Sequence[Parameter], seed: int, prune: bool
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._parameters = parameters
        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=TRIALS_BEFORE_PRUNING, n_warmup_steps=FIRST_PRUNING_EPOCH
        )
        self._study = optuna.create_study(
            storage=storage,
            study_name=NAME,
            load_if_exists=True,
            direction="minimize" if better == "lower" else "maximize",
            pruner=pruner if prune else optuna.pruners.NopPruner(),
        )
        # A resumed search must not sample its initial values again.
        begun = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = TPESampler(seed=(seed + begun) % 2**32, constant_liar=True)
        self._take_up_interrupted()

    def room(self, most: int) -> bool:
        """Checks that another trial may begin, of `most` in total."""
        return sum(trial.state != "waiting" for trial in self.records()) < most

    def ask(self) -> Asked | None:
        """Returns the next trial; None if another trial already had the same values."""
        trial = self._study.ask()
        labels = {p.path: self._suggest(trial, p) for p in self._parameters}
        numbers = [earlier.user_attrs.get(NUMBER, 0) for earlier in self._counted()]
        number = trial.user_attrs.get(NUMBER) or 1 + max(numbers, default=0)
        trial.set_user_attr(NUMBER, number)
        for earlier in self._counted():
            if earlier.params == labels and earlier.number != trial.number:
                self._as_before(trial, earlier)
                return None
        return Asked(trial, number, self._values(labels))

    def done(self, asked: Asked, value: float, facts: Mapping[str, Any]) -> None:
        """Records a completed trial."""
        self._keep(asked.trial, facts)
        self._study.tell(asked.trial, value)

    def pruned(self, asked: Asked, reason: str, facts: Mapping[str, Any]) -> None:
        """Records a pruned trial."""
        self._keep(asked.trial, {**facts, REASON: reason})
        self._study.tell(asked.trial, state=TrialState.PRUNED)

    def failed(self, asked: Asked, reason: str, facts: Mapping[str, Any]) -> None:
        """Records a failed trial."""
        self._keep(asked.trial, {**facts, REASON: reason})
        self._study.tell(asked.trial, state=TrialState.FAIL)

    def records(self) -> list[TrialRecord]:
        """Returns all trials, except interrupted ones that were resumed, by number."""
        found = [self._record(trial) for trial in self._counted()]
        return sorted(found, key=lambda record: record.number)

    def importances(self) -> dict[str, float]:
        """Returns the influence on the metric by path; empty if too few trials are done."""
        done = [t for t in self._counted() if t.state is TrialState.COMPLETE]
        if len(self._parameters) < 2 or len(done) <= TRIALS_BEFORE_PRUNING:
            return {}
        if len({trial.value for trial in done}) == 1:
            return {}
        return get_param_importances(self._study)

    def _suggest(self, trial: Trial, parameter: Parameter) -> float | str:
        path, low, high = parameter.path, parameter.low, parameter.high
        if parameter.kind == "choice":
            return trial.suggest_categorical(path, parameter.labels())
        if parameter.kind == "int":
            return trial.suggest_int(path, int(low), int(high))
        return trial.suggest_float(path, low, high, log=parameter.kind == "log")

    def _values(self, labels: Mapping[str, Any]) -> dict[str, Value]:
        """Maps Optuna's labels back to values."""
        found: dict[str, Value] = {}
        for parameter in self._parameters:
            if (label := labels.get(parameter.path)) is not None:
                choices = dict(zip(parameter.labels(), parameter.choices, strict=True))
                found[parameter.path] = choices.get(label, label)
        return found

    def _counted(self) -> list[FrozenTrial]:
        """Returns every trial except interrupted ones whose values are tried again."""
        return [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state is not TrialState.FAIL or REASON in trial.user_attrs
        ]

    def _take_up_interrupted(self) -> None:
        for trial in self._counted():
            if trial.state is TrialState.RUNNING:
                self._study.tell(trial.number, state=TrialState.FAIL)
                if set(trial.params) == {parameter.path for parameter in self._parameters}:
                    number = trial.user_attrs.get(NUMBER)
                    attributes = {} if number is None else {NUMBER: number}
                    self._study.enqueue_trial(trial.params, user_attrs=attributes)

    def _as_before(self, trial: Trial, earlier: FrozenTrial) -> None:
        """Completes a trial with the result of an earlier one with the same values."""
        reason = f"has the values of trial {earlier.user_attrs.get(NUMBER)}"
        self._keep(trial, {REASON: reason})
        if earlier.state is TrialState.COMPLETE:
            kept = {
                key: earlier.user_attrs[key]
                for key in (EPOCHS, FOLDER)
                if key in earlier.user_attrs
            }
            self._keep(trial, kept)
            self._study.tell(trial, earlier.value)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def _keep(self, trial: Trial, facts: Mapping[str, Any]) -> None:
        for name, fact in facts.items():
            trial.set_user_attr(name, fact)

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        kept = trial.user_attrs
        return TrialRecord(
            number=kept.get(NUMBER, trial.number + 1),
            state=_STATES[trial.state],
            values=self._values(trial.params),
            epochs=kept.get(EPOCHS, 0),
            value=trial.value if trial.state is TrialState.COMPLETE else kept.get(LAST),
            took_s=kept.get(TOOK_S),
            reason=kept.get(REASON),
            folder=kept.get(FOLDER),
        )
