"""What an artifact must keep to be published, by the task of its model. No torch.

In: the tolerance of a recipe's entry, and the labels of the test split. Out: limits in the outputs'
own unit, and the reason why an artifact is refused.

| task          | outputs beside the checkpoint's                 | metric over the test split     |
|---------------|-------------------------------------------------|--------------------------------|
| `classes`     | difference, agreement, shift of a probability   | fall of accuracy               |
| `multi_label` | difference of a logit                           | fall of F1                     |
| `regression`  | difference as a share of the labels' spread     | relative rise of the RMSE      |
| `counts`      | the same; of a rate's logarithm, in its unit    | relative rise of the RMSE      |
"""

import numpy as np
import numpy.typing as npt

from model_store.arrays.parity import beyond_rounding
from model_store.metric import MeasuredMetric, figure_texts, how_much_worse, is_share
from model_store.tensors import Array
from model_store.tolerance import Tolerance
from training.loading.label_arrays import LabelArray, spreads
from training.metrics.task_metric import TaskMetric
from training.recipe.parts.export_entries import Export, Fp32Tolerance
from training.recipe.parts.task import Task

ROUNDING = 1e-9
"""Of the difference of two metrics."""
LEAST_ERROR_SHARE = 0.01
"""Of the labels' spread, over all columns as the RMSE is: an RMSE below it counts as that much, for
what is nearly exact, or is, may double for nothing."""
NO_DIFFERENCE_SHARE = LEAST_ERROR_SHARE * Fp32Tolerance().max_error_rise
"""Of the labels' spread: how much the error of one model may differ from run to run and from
artifact to artifact, since the proof lets the least error rise by that much."""


def tolerance_of(
    entry: Export,
    metric: TaskMetric,
    labels: LabelArray,
    answers: Array | None = None,
    embeddings: tuple[str, ...] = (),
) -> Tolerance:
    """How far the outputs of an artifact may lie off, in their own unit.

    Args:
        entry: of the recipe.
        metric: the task's.
        labels: of the test split.
        answers: the checkpoint's for it.
        embeddings: outputs that are compared by their cosine.
    """
    told = entry.tolerance
    min_cosine = told.min_cosine if embeddings else None
    if metric.task == "classes":
        return Tolerance(
            max_abs_difference=told.max_abs_difference,
            min_agreement=told.min_agreement,
            max_probability_shift=told.max_probability_shift,
            embeddings=embeddings,
            min_cosine=min_cosine,
        )
    limit = told.max_abs_difference
    if metric.task != "multi_label":
        limit = told.max_spread_share * float(_units(metric, labels, answers).max())
    # Only classes have a largest output that means anything.
    return Tolerance(
        max_abs_difference=limit,
        min_agreement=0.0,
        max_probability_shift=1.0,
        embeddings=embeddings,
        min_cosine=min_cosine,
    )


def too_far_off(
    entry: Export, metric: TaskMetric, labels: LabelArray, right: Array, found: Array
) -> str | None:
    """Says which column of numbers lies too far off; None for other tasks, and if none does.

    The columns of a regression may have units of their own, and `tolerance_of` knows the largest.

    Args:
        entry: of the recipe.
        metric: the task's.
        labels: of the test split.
        right: the checkpoint's first output for it.
        found: the artifact's.
    """
    if metric.task in ("classes", "multi_label") or right.shape != found.shape:
        return None
    units = _units(metric, labels, right)
    if len(units) == 1:
        return None
    gaps = np.abs(right.astype(np.float64) - beyond_rounding(right, found).astype(np.float64))
    shares = gaps.reshape(-1, len(units)).max(axis=0) / units
    column, limit = int(shares.argmax()), entry.tolerance.max_spread_share
    if shares[column] <= limit:
        return None
    return (
        f"the test split: column {column} lies up to {shares[column]:.3g} times the standard "
        f"deviation of its labels, or the checkpoint's own error, off, more than {limit:.3g}"
    )


def too_much_worse(
    before: MeasuredMetric | None,
    after: MeasuredMetric | None,
    entry: Export,
    labels: LabelArray,
) -> str | None:
    """Says that the metric fell, or the error rose, by more than an entry allows, or None.

    Args:
        before: of the checkpoint.
        after: of the artifact.
        entry: of the recipe.
        labels: of the test split.
    """
    if before is None or after is None:
        return "the test split: the answers are no numbers"
    texts = figure_texts(before.name, before.value, after.value)
    if before.better == "higher":
        limit = entry.tolerance.max_metric_drop
        if how_much_worse("higher", before.value, after.value) <= limit + ROUNDING:
            return None
        return (
            f"the test split: {before.name} fell from {texts[0]} to {texts[1]}, by more "
            f"than {limit:.4f}"
        )
    limit = entry.tolerance.max_error_rise
    least = LEAST_ERROR_SHARE * _whole_spread(labels)
    if how_much_worse("lower", max(before.value, least), after.value) <= limit + ROUNDING:
        return None
    return (
        f"the test split: {before.name} rose from {texts[0]} to {texts[1]}, by more than "
        f"{limit:.2%}"
    )


def no_difference(name: str, task: Task, labels: LabelArray, value: float) -> float:
    """The largest difference of two values of a metric that is rounding, in the metric's unit.

    Args:
        name: of the metric, with or without its split.
        task: of the model.
        labels: of the test split.
        value: one of the two.
    """
    if is_share(name):
        return 0.0  # rows are counted
    kind = name.rpartition("/")[2]
    if kind in ("rmse", "mae"):
        return NO_DIFFERENCE_SHARE * _whole_spread(labels)
    if kind == "r2" or task in ("classes", "multi_label"):
        return NO_DIFFERENCE_SHARE
    return NO_DIFFERENCE_SHARE * abs(value)


def _whole_spread(labels: LabelArray) -> float:
    """Of all columns together, as the RMSE is."""
    return float(np.sqrt((spreads(labels) ** 2).mean()))


def _units(
    metric: TaskMetric, labels: LabelArray, answers: Array | None
) -> npt.NDArray[np.float64]:
    """What a difference of each column is measured by.

    It is the spread of its labels, or the checkpoint's own error where that is larger: a column
    whose labels hardly vary is known no better than that, and rounding would look large in it.
    """
    found = spreads(labels)
    if metric.log_rates or answers is None:
        return np.ones_like(found) if metric.log_rates else found
    errors = (metric.predicted(answers, labels) - labels).reshape(-1, len(found)) ** 2
    told = ~np.isnan(errors)
    squares = np.where(told, errors, 0.0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
    units: npt.NDArray[np.float64] = np.maximum(found, np.sqrt(squares))
    return units
