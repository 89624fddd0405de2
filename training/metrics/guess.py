"""The best guess without the inputs: one constant answer for every row.

In: the labels of the training rows, and those of the test split. Out: that answer, as text, and its
metrics on the test split. A model that is no better has learned nothing useful.

| task          | the answer                                                      |
|---------------|-----------------------------------------------------------------|
| `classes`     | the most frequent class                                         |
| `multi_label` | each label as most rows have it, or all of them, which is better |
| the others    | the mean of each column                                         |
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from flambeau.protocol.strict import StrictModel
from flambeau.protocol.tensors import Array
from model_store.metric import MeasuredMetric, is_better, metric_text
from training.loading.label_arrays import LabelArray, counted
from training.metrics.task_metric import TaskMetric

MOST_SHOWN = 8
"""Columns of a label in a message."""
LEAST_RATE = 1e-12
"""Replaces a mean of 0 if outputs are logarithms."""


class Guess(StrictModel):
    """One answer for every row, compared with the model."""

    answer: str
    """The answer as text, such as `class 'no'`."""
    metrics: dict[str, float]
    """Every metric of the task on the test split, by name."""
    metric: MeasuredMetric
    """The metric that evaluates models."""
    model: MeasuredMetric
    """The same metric of the model."""
    only_label: str | None = None
    """The one value of all training labels, as text; None if they differ."""

    @property
    def beaten(self) -> Literal["no", "perhaps", "yes"]:
        """Tells if the model is better; "perhaps" if the test split is too small to tell."""
        low_high = self.model.interval
        if not is_better(self.metric.better, self.model.value, self.metric.value):
            return "no"
        within = low_high is not None and low_high[0] <= self.metric.value <= low_high[1]
        return "perhaps" if within else "yes"

    def text(self) -> str:
        """Returns both figures in one line."""
        name = f"test/{self.metric.name}"
        interval = ""
        if self.model.interval is not None:
            low, high = (metric_text(self.metric.name, bound) for bound in self.model.interval)
            interval = f" ({low} to {high} with 95 % confidence)"
        return (
            f"{name} is {self.model.text()}{interval}, and {self.answer} for every row gives "
            + (self.metric.text())
        )

    @property
    def condition(self) -> str:
        """The condition of `publish.if` that keeps a version that is no better from going live."""
        operator = "<" if self.metric.better == "lower" else ">"
        return f"test/{self.metric.name} {operator} guess"

    def warning(self) -> str | None:
        """Returns a warning about the model for its users; None if it is better than the guess."""
        match self.beaten:
            case "yes":
                return None
            case "no":
                words = f"the model is no better than guessing: {self.text()}"
            case "perhaps":
                words = f"the model may be no better than guessing: {self.text()}"
        if self.only_label is None:
            return words
        return f"labels are all {self.only_label}, so nothing can be learned; {words}"


def best_guess(
    metric: TaskMetric,
    training: LabelArray,
    test: LabelArray,
    model: MeasuredMetric,
    width: int,
    names: Sequence[str] = (),
) -> Guess | None:
    """Returns the best single answer, with the model's own metric.

    Args:
        metric: the metric of the task.
        training: labels of the training rows, which decide the answer.
        test: labels of the test split.
        model: the model's own figure.
        width: the length of the output's last axis: classes, labels or columns.
        names: names of the classes, if they have some.

    Returns:
        The guess; None if it has no figure.
    """
    candidates = []
    only = _only_label(metric, training, names)
    for answer, row in _answers(metric, training, width, names):
        outputs = _for_every_row(row, test, metric)
        measured = metric.measured(outputs, test)
        if measured is not None:
            found = metric.metrics(outputs, test)
            finite = {name: value for name, value in found.items() if np.isfinite(value)}
            candidates.append(
                Guess(answer=answer, metrics=finite, metric=measured, model=model, only_label=only)
            )
    best: Guess | None = None
    for guess in candidates:
        if best is None or is_better(guess.metric.better, guess.metric.value, best.metric.value):
            best = guess
    return best


def _answers(
    metric: TaskMetric, labels: LabelArray, width: int, names: Sequence[str]
) -> list[tuple[str, Array]]:
    """Returns answers as text, and as outputs of one row, [width]."""
    if metric.task == "classes":
        classes = labels[counted(labels)].astype(np.int64)
        most = int(np.bincount(classes, minlength=width).argmax())
        return [(_class_text(most, names), np.eye(width, dtype=np.float32)[most])]
    columns = _columns(labels).astype(np.float64)
    told = ~np.isnan(columns)
    means = np.where(told, columns, 0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
    if metric.task == "multi_label":
        usual = np.where(means > 0.5, 1.0, -1.0)
        return [("the usual labels", usual), ("all labels", np.ones_like(usual))]
    if metric.log_rates:
        means = np.log(np.maximum(means, LEAST_RATE))
    return [("the mean", means)]


def _only_label(metric: TaskMetric, labels: LabelArray, names: Sequence[str]) -> str | None:
    """Returns the one value of all labels, as text; None if they differ."""
    if metric.task == "classes":
        classes = labels[counted(labels)]
        alike = classes.size > 0 and bool((classes == classes[0]).all())
        return _class_text(int(classes[0]), names) if alike else None
    columns = _columns(labels)
    if not len(columns) or not (columns == columns[0]).all():
        return None
    # Labels that differ in FP64 may be equal here.
    values = [f"{float(str(np.float32(value))):.9g}" for value in columns[0][:MOST_SHOWN]]
    shown = ", ".join([*values, *(["…"] if columns.shape[1] > MOST_SHOWN else [])])
    return f"{shown} in FP32" if columns.shape[1] == 1 else f"[{shown}] in FP32"


def _columns(labels: LabelArray) -> LabelArray:
    """Returns labels that are numbers, [rows, columns]."""
    return labels.reshape(-1, 1 if labels.ndim == 1 else labels.shape[-1])


def _class_text(number: int, names: Sequence[str]) -> str:
    return f"class '{names[number]}'" if number < len(names) else f"class {number}"


def _for_every_row(row: Array, labels: LabelArray, metric: TaskMetric) -> Array:
    """Returns the answer as the outputs of all rows, as a view without memory of its own."""
    if metric.task == "classes":
        return np.broadcast_to(row, (*labels.shape, len(row)))
    return np.broadcast_to(row if labels.ndim > 1 else row[0], labels.shape)
