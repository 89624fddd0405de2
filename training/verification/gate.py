"""Decides if an artifact may be published, by the task of its model. Does not import torch.

In: the tolerance of a recipe's entry, and the labels of the test split. Out: limits in the unit of
the outputs, and the reason why an artifact is refused.

| task          | outputs compared with the checkpoint's          | metric over the test split     |
|---------------|-------------------------------------------------|--------------------------------|
| `classes`     | difference, agreement, shift of a probability   | fall of accuracy               |
| `multi_label` | difference of a logit                           | fall of F1                     |
| `regression`  | difference as a share of the labels' spread     | relative rise of the RMSE      |
| `counts`      | the same; of a rate's logarithm, in its unit    | relative rise of the RMSE      |
"""

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from model_store.arrays.measures import beyond_rounding
from model_store.metric import BETTER, MeasuredMetric, figure_texts, how_much_worse, is_share
from model_store.tolerance import Tolerance
from training.loading.label_arrays import LabelArray, spreads, whole_spread
from training.metrics.task_metric import TaskMetric
from training.recipe.kinds.export_kinds import Export
from training.recipe.parts.export_entries import Fp32Tolerance
from training.recipe.parts.task import Task

ROUNDING = 1e-9
"""Rounding error of the difference of two metrics."""
LEAST_ERROR_SHARE = 0.01
"""Share of the labels' spread, over all columns like the RMSE: a smaller RMSE counts as that much,
since a nearly exact one may double for no reason."""
NO_DIFFERENCE_SHARE = LEAST_ERROR_SHARE * Fp32Tolerance().max_error_rise
"""Share of the labels' spread by which the error of a model may differ between runs and artifacts,
since verification lets the smallest error rise by that much."""


def tolerance_of(
    entry: Export,
    metric: TaskMetric,
    labels: LabelArray,
    answers: Array | None = None,
    embeddings: tuple[str, ...] = (),
) -> Tolerance:
    """Returns the accepted difference of an artifact's outputs, in their unit.

    Args:
        entry: the recipe's entry.
        metric: the task's metric.
        labels: labels of the test split.
        answers: the checkpoint's outputs for it.
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
    # Only for classes does the largest output have a meaning.
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
    """Returns a message with a column whose numbers differ too much, if any; None otherwise.

    The columns of a regression may have units of their own, and `tolerance_of` has the largest.

    Args:
        entry: the recipe's entry.
        metric: the task's metric.
        labels: labels of the test split.
        right: the checkpoint's first output for it.
        found: the artifact's first output.
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
    """Returns a message if the metric fell, or the error rose, by more than the entry allows.

    Args:
        before: the checkpoint's metric.
        after: the artifact's metric.
        entry: the recipe's entry.
        labels: labels of the test split.
    """
    if before is None or after is None:
        return "the test split: the outputs are not numbers"
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
    # A metric of the user's own has a unit of its own.
    least = LEAST_ERROR_SHARE * whole_spread(labels) if before.name in BETTER else 0.0
    if how_much_worse("lower", max(before.value, least), after.value) <= limit + ROUNDING:
        return None
    return (
        f"the test split: {before.name} rose from {texts[0]} to {texts[1]}, by more than "
        f"{limit:.2%}"
    )


def no_difference(name: str, task: Task, labels: LabelArray, value: float) -> float:
    """Returns the difference of two values of a metric that counts as none, in its unit.

    Args:
        name: name of the metric, with or without its split.
        task: the task of the model.
        labels: labels of the test split.
        value: one of the two values.
    """
    if is_share(name):
        return 0.0  # rows are counted
    kind = name.rpartition("/")[2]
    if kind in ("rmse", "mae"):
        return NO_DIFFERENCE_SHARE * whole_spread(labels)
    if kind in BETTER and (kind == "r2" or task in ("classes", "multi_label")):
        return NO_DIFFERENCE_SHARE
    return NO_DIFFERENCE_SHARE * abs(value)


def _units(
    metric: TaskMetric, labels: LabelArray, answers: Array | None
) -> npt.NDArray[np.float64]:
    """Returns the unit of each column's differences.

    It is the spread of the labels, or the checkpoint's own error if that is larger: the accuracy
    of a column with nearly constant labels is that error.
    """
    found = spreads(labels)
    if metric.log_rates or answers is None:
        return np.ones_like(found) if metric.log_rates else found
    errors = (metric.predicted(answers, labels) - labels).reshape(-1, len(found)) ** 2
    told = ~np.isnan(errors)
    squares = np.where(told, errors, 0.0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
    units: npt.NDArray[np.float64] = np.maximum(found, np.sqrt(squares))
    return units
