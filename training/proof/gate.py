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

from model_store.metric import MeasuredMetric, how_much_worse
from model_store.parity import Tolerance
from model_store.tensors import Array
from training.metrics.task_metric import TaskMetric
from training.recipe_parts.export_entries import Export
from training.rows.label_arrays import LabelArray, spreads

ROUNDING = 1e-9
"""Of the difference of two metrics."""
LEAST_ERROR_SHARE = 0.01
"""Of the labels' spread: an RMSE below it counts as that much, for what is nearly exact may double
for nothing."""


def tolerance_of(entry: Export, metric: TaskMetric, labels: LabelArray) -> Tolerance:
    """How far the outputs of an artifact may lie off, in their own unit.

    Args:
        entry: of the recipe.
        metric: the task's.
        labels: of the test split.
    """
    told = entry.tolerance
    if metric.task == "classes":
        return Tolerance(
            max_abs_difference=told.max_abs_difference,
            min_agreement=told.min_agreement,
            max_probability_shift=told.max_probability_shift,
        )
    limit = told.max_abs_difference
    if metric.task != "multi_label":
        limit = told.max_spread_share * float(_units(metric, labels).max())
    # Only classes have a largest output that means anything.
    return Tolerance(max_abs_difference=limit, min_agreement=0.0, max_probability_shift=1.0)


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
    units = _units(metric, labels)
    if metric.task in ("classes", "multi_label") or right.shape != found.shape or len(units) == 1:
        return None
    gaps = np.abs(right.astype(np.float64) - found.astype(np.float64)).reshape(-1, len(units))
    shares = gaps.max(axis=0) / units
    column, limit = int(shares.argmax()), entry.tolerance.max_spread_share
    if shares[column] <= limit:
        return None
    return (
        f"the test split: column {column} lies up to {shares[column]:.3g} times the standard "
        f"deviation of its labels off, more than {limit:.3g}"
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
    if before.better == "higher":
        limit = entry.tolerance.max_metric_drop
        if how_much_worse("higher", before.value, after.value) <= limit + ROUNDING:
            return None
        return (
            f"the test split: {before.name} fell from {before.value:.4f} to {after.value:.4f}, by "
            f"more than {limit:.4f}"
        )
    limit = entry.tolerance.max_error_rise
    least = LEAST_ERROR_SHARE * float(spreads(labels).min())
    if how_much_worse("lower", max(before.value, least), after.value) <= limit + ROUNDING:
        return None
    return (
        f"the test split: {before.name} rose from {before.value:.4g} to {after.value:.4g}, by more "
        f"than {limit:.2%}"
    )


def _units(metric: TaskMetric, labels: LabelArray) -> npt.NDArray[np.float64]:
    """What a difference of each column is measured by."""
    found = spreads(labels)
    return np.ones_like(found) if metric.log_rates else found
