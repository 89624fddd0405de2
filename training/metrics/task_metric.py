"""Computes metrics: the one place that compares outputs with labels. No torch.

In: outputs and labels of some rows. Out: sums, which are added over batches and over processes, and
from which every metric of the task is computed.

Shapes: N rows, T labels of a row (or none: one label a row), K classes or labels, D numbers of a
row. The sums are a vector, [S].
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from model_store.metric import MeasuredMetric, better_of
from training.loading.label_arrays import LabelArray, counted
from training.metrics.confidence import ratio_interval, wilson_interval
from training.metrics.own_metric import OwnMetric
from training.recipe.parts.task import METRICS, OUTPUTS, JudgedTask
from training.recipe.recipe import Recipe

Sums = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Sums over some rows; those of several batches, and of several processes, are added."""

    task: JudgedTask = "classes"
    sums: Sums = field(default_factory=lambda: np.zeros(0))
    """For `classes`: labels, right ones, rows of T labels, right rows; then by class how often it
    is the label, how often the answer, and how often both. For `multi_label`: labels, right ones,
    rows, right rows, ones in labels and answers together, ones in both. For numbers, by column:
    labels, errors, squared errors, labels' sum and their squares'. Empty before the first row."""

    def __add__(self, other: "Tally") -> Self:
        if not self.sums.size or not other.sums.size:
            some = self if self.sums.size else other
            return type(self)(some.task, some.sums)
        return type(self)(self.task, self.sums + other.sums)

    def metrics(self) -> dict[str, float]:
        """Returns every metric of the task, by name; see `training.recipe.parts.task.METRICS`.

        `accuracy` is a share of labels, `exact_match` of rows. `macro_f1` is the mean over the
        classes that occur, `f1` is of all labels together. `mae` and `rmse` are of all numbers
        together; `r2` is the mean over the columns.
        """
        if self.task == "classes":
            return _class_metrics(self.sums)
        if self.task == "multi_label":
            labels, right, rows, exact, ones, both = self.sums
            return {
                "f1": float(2 * both / ones) if ones else 0.0,
                "accuracy": float(right / labels),
                "exact_match": float(exact / rows),
            }
        return _number_metrics(self.sums)


@dataclass(frozen=True, slots=True)
class TaskMetric:
    """The metrics of one task."""

    task: JudgedTask = "classes"
    log_rates: bool = False
    """True if outputs about counts are logarithms."""
    own: OwnMetric | None = None
    """The user's own metric, which evaluates artifacts in place of the task's."""

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """Returns the metric of a recipe."""
        first = recipe.loss.terms[0]
        log_rates = first.poisson is not None and first.poisson.log_input
        own = None if recipe.metric is None else OwnMetric.of(recipe.metric)
        return cls(first.single_task, log_rates, own)

    @property
    def name(self) -> str:
        """The name of the metric that evaluates artifacts; a model without labels has none."""
        return METRICS[self.task][0] if self.own is None else self.own.name

    def metrics(self, outputs: Array, labels: LabelArray) -> dict[str, float]:
        """Returns every metric of some rows, by name, the user's own included.

        Args:
            outputs: see `tally`.
            labels: see `tally`.

        Raises:
            TargetError: the user's own metric fails.
        """
        own = {} if self.own is None else {self.own.name: self.own.value(outputs, labels)}
        return self.tally(outputs, labels).metrics() | own

    def tally(self, outputs: Array, labels: LabelArray) -> Tally:
        """Computes the sums.

        Args:
            outputs: for classes [N, K], or [N, T, K]; otherwise in the labels' shape, where [N, 1]
                may stand for [N]. In another shape all answers are wrong.
            labels: as in `training.datasets.Split`.
        """
        if self.task == "classes":
            return Tally(self.task, _class_sums(outputs, labels))
        numbers = self.predicted(outputs, labels)
        if self.task == "multi_label":
            return Tally(self.task, _multi_label_sums(numbers, labels))
        return Tally(self.task, _number_sums(numbers, labels))

    def measured(self, outputs: Array, labels: LabelArray) -> MeasuredMetric | None:
        """Returns the metric that evaluates artifacts, with its interval.

        None if it is not finite, or the task has none.
        """
        if self.task == OUTPUTS:
            return None
        if self.own is not None:
            value = self.own.value(outputs, labels)
            if not np.isfinite(value):
                return None
            return MeasuredMetric(name=self.name, value=value, better=self.own.better)
        with np.errstate(invalid="ignore", over="ignore"):
            value = self.tally(outputs, labels).metrics()[self.name]
            interval = self._interval(value, outputs, labels)
        if not np.isfinite([value, *interval]).all():
            return None
        return MeasuredMetric(
            name=self.name, value=value, interval=interval, better=better_of(self.name)
        )

    def _interval(self, value: float, outputs: Array, labels: LabelArray) -> tuple[float, float]:
        if self.task == "classes":
            return wilson_interval(value, int(counted(labels).sum()))
        predicted = self.predicted(outputs, labels).reshape(len(labels), -1)
        rows = labels.reshape(len(labels), -1).astype(np.float64)
        if self.task == "multi_label":
            both, ones = 2 * (predicted * rows).sum(axis=1), (predicted + rows).sum(axis=1)
            low, high = ratio_interval(both, ones) if ones.any() else (0.0, 1.0)
            return max(low, 0.0), min(high, 1.0)
        told = ~np.isnan(rows)
        squares = np.where(told, (predicted - np.where(told, rows, 0)) ** 2, 0).sum(axis=1)
        low, high = ratio_interval(squares, told.sum(axis=1).astype(np.float64))
        return float(np.sqrt(max(low, 0.0))), float(np.sqrt(high))

    def predicted(self, outputs: Array, labels: LabelArray) -> Sums:
        """Returns the outputs in the labels' shape and unit; NaN if the shape differs."""
        if outputs.size != labels.size or len(outputs) != len(labels):
            return np.full(labels.shape, np.nan)
        found = outputs.reshape(labels.shape).astype(np.float64)
        if self.task == "multi_label":
            return (found > 0).astype(np.float64)  # a probability above one half
        return np.exp(found) if self.log_rates else found


def _class_sums(logits: Array, labels: LabelArray) -> Sums:
    classes = logits.shape[-1]
    counts = counted(labels)
    fits = logits.shape[:-1] == labels.shape
    answers = logits.argmax(axis=-1) if fits else np.full(labels.shape, -1)
    right = answers == labels
    sequences = labels.ndim == 2
    return np.concatenate(
        [
            [counts.sum(), (right & counts).sum()],
            [len(labels), (right | ~counts).all(axis=1).sum()] if sequences else [0, 0],
            _histogram(labels[counts], classes),
            _histogram(answers[counts], classes) if fits else np.zeros(classes),
            _histogram(labels[counts & right], classes),
        ]
    ).astype(np.float64)


def _histogram(found: Array, classes: int) -> Array:
    """Returns the frequency of each class, [K]."""
    return np.bincount(found.astype(np.int64), minlength=classes)[:classes]


def _class_metrics(sums: Sums) -> dict[str, float]:
    labels, right, rows, exact = sums[:4]
    told, answered, both = sums[4:].reshape(3, -1)
    occurs = told + answered > 0
    found = {
        "accuracy": float(right / labels),
        "macro_f1": float((2 * both[occurs] / (told + answered)[occurs]).mean()),
    }
    if rows:
        found["exact_match"] = float(exact / rows)
    return found


def _multi_label_sums(answers: Sums, labels: LabelArray) -> Sums:
    rows = answers.reshape(len(labels), -1)
    told = labels.reshape(len(labels), -1)
    right = rows == told
    both = (rows == 1) & (told == 1)
    ones = np.nansum(rows) + told.sum()
    return np.array(
        [told.size, right.sum(), len(rows), right.all(axis=1).sum(), ones, both.sum()], np.float64
    )


def _number_sums(answers: Sums, labels: LabelArray) -> Sums:
    columns = 1 if labels.ndim == 1 else labels.shape[-1]
    told = labels.reshape(-1, columns).astype(np.float64)
    counts = ~np.isnan(told)
    errors = np.where(counts, answers.reshape(-1, columns) - told, 0)
    told = np.where(counts, told, 0)
    each = (counts, np.abs(errors), errors**2, told, told**2)
    return np.concatenate([one.sum(axis=0) for one in each]).astype(np.float64)


def _number_metrics(sums: Sums) -> dict[str, float]:
    counts, errors, squares, told, told_squares = sums.reshape(5, -1)
    around_mean = told_squares - told**2 / np.maximum(counts, 1)
    # A constant column is explained fully or not at all, as in scikit-learn.
    varies = around_mean > 1e-12 * told_squares
    unexplained = squares / np.where(varies, around_mean, 1)
    r2 = np.where(varies, 1 - unexplained, np.where(squares > 0, 0.0, 1.0))
    return {
        "rmse": float(np.sqrt(squares.sum() / counts.sum())),
        "mae": float(errors.sum() / counts.sum()),
        "r2": float(r2.mean()),
    }
