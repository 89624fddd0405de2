"""The study of a search: which values are tried next, and which trial is not worth going on with.

Optuna chooses (Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework",
2019): values by tree-structured Parzen estimators, hopeless trials by the median of the others at
the same epoch. This is the only file that knows it.

Rules kept here: one process writes the study, a line of a journal at a time, so that whatever ends
it leaves a study that can be read; a trial that was interrupted is taken up again with its values
and its number, and is counted once.
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

from model_store.metric import better_of
from training.sweep.parameter import Parameter, Value
from training.sweep.records import State, TrialRecord

NAME = "sweep"
JOURNAL = "study.journal"
TRIALS_BEFORE_PRUNING = 4
"""Whose medians are compared with; fewer say little."""
FIRST_PRUNING_EPOCH = 2
"""After the first one much is chance."""
NUMBER, REASON, EPOCHS, TOOK_S, FOLDER, LAST = (
    "number",
    "reason",
    "epochs",
    "took_s",
    "folder",
    "last",
)
"""What is kept of a trial beside what Optuna keeps. One that failed without a reason was
interrupted."""
_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Asked:
    """A trial that is to be run.

    Args:
        trial: Optuna's.
        number: counted from 1.
        values: by path.
    """

    def __init__(self, trial: Trial, number: int, values: dict[str, Value]) -> None:
        self.trial, self.number, self.values = trial, number, values
        self._told: set[int] = set()

    def hopeless_after(self, epoch: int, value: float) -> bool:
        """Takes the metric of an epoch, and says whether the trial should end.

        Args:
            epoch: counted from 1; what is told again after a resumption changes nothing.
            value: of the metric.
        """
        self.trial.set_user_attr(EPOCHS, epoch)
        if epoch in self._told or not math.isfinite(value):
            return False
        self._told.add(epoch)
        self.trial.set_user_attr(LAST, value)
        self.trial.report(value, epoch)
        return self.trial.should_prune()


class Study:
    """A search's trials, in its folder.

    Args:
        folder: has the journal; it is made if there is none.
        metric: what trials are compared by.
        parameters: what is chosen.
        seed: of the choices.
        prune: whether hopeless trials end early.
    """

    def __init__(
        self, folder: Path, metric: str, parameters: Sequence[Parameter], seed: int, prune: bool
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
            direction="minimize" if better_of(metric) == "lower" else "maximize",
            pruner=pruner if prune else optuna.pruners.NopPruner(),
        )
        # A search that goes on must not draw the values again that it began with.
        begun = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = TPESampler(seed=(seed + begun) % 2**32, constant_liar=True)
        self._take_up_interrupted()

    def room(self, most: int) -> bool:
        """Whether another trial may begin, of `most` in all."""
        return sum(trial.state != "waiting" for trial in self.records()) < most

    def ask(self) -> Asked | None:
        """The next trial; None for one that need not run, because another had the same values."""
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
        """A trial came to its end."""
        self._keep(asked.trial, facts)
        self._study.tell(asked.trial, value)

    def pruned(self, asked: Asked, reason: str, facts: Mapping[str, Any]) -> None:
        """A trial was not worth going on with."""
        self._keep(asked.trial, {**facts, REASON: reason})
        self._study.tell(asked.trial, state=TrialState.PRUNED)

    def failed(self, asked: Asked, reason: str, facts: Mapping[str, Any]) -> None:
        """A trial came to nothing."""
        self._keep(asked.trial, {**facts, REASON: reason})
        self._study.tell(asked.trial, state=TrialState.FAIL)

    def records(self) -> list[TrialRecord]:
        """All trials but those that were taken up again, by number."""
        found = [self._record(trial) for trial in self._counted()]
        return sorted(found, key=lambda record: record.number)

    def importances(self) -> dict[str, float]:
        """Share of what decided the metric, by path; nothing where too few trials are done."""
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
        """The values that Optuna knows by their labels."""
        found: dict[str, Value] = {}
        for parameter in self._parameters:
            if (label := labels.get(parameter.path)) is not None:
                choices = dict(zip(parameter.labels(), parameter.choices, strict=True))
                found[parameter.path] = choices.get(label, label)
        return found

    def _counted(self) -> list[FrozenTrial]:
        """Every trial but those whose values are tried again under their number."""
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
        """Settles a trial by one with the same values, which would go the same way."""
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
