"""The labels of a split: checks them, and converts them for the recipe's losses. No torch.

In: the data's labels: one array, or several by name, of which `labels` evaluates the model. Out:
INT64 for classes, with `IGNORED_LABEL` for labels that do not count; FP32 for every other task,
with NaN in rows of T places for places that do not count.

Shapes: rows of one label [rows]; of T classes [rows, T]; of K labels, 0 or 1, [rows, K]; of D
numbers [rows, D], or T times D [rows, T, D].
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from training.errors import DataError
from training.loading.mixed_rows import array_of, first_odd_row
from training.recipe.parts.loss_parts import LABELS, LossPart, LossTerm
from training.recipe.parts.task import LABELS_IN_WORDS

LabelArray = npt.NDArray[np.int64] | npt.NDArray[np.float32]
IGNORED_LABEL = -100
"""Replaces the recipe's `ignore_index` in every split: this place does not count."""
LEAST_SPREAD = 0.01
"""Share of a column's size that its unit is at least: rounding to FP32 is a share of the size, and
would look large in a column that hardly varies."""
ROUNDING_SHARE = 1e-7
"""Share of the largest spread below which a column's numbers are the rounding of zeros."""
SUITING_LOSSES = (
    "bce is for labels 0 and 1 that do not exclude each other, mse, l1, smooth_l1 and huber for "
    "numbers, poisson for counts, cross_entropy for whole numbers that name a class"
)


def label_arrays(found: object, where: str, loss: LossPart) -> dict[str, LabelArray]:
    """Returns the labels of all losses, by name.

    Args:
        found: one array, or arrays by name.
        where: the split and its data set, for messages.
        loss: the recipe's part.

    Raises:
        DataError: labels are missing, or do not suit a loss; the message has the first row that is
            wrong.
    """
    arrays = found if isinstance(found, Mapping) else {LABELS: found}
    labels: dict[str, LabelArray] = {}
    for term in loss.terms:
        if term.labels not in arrays:
            raise DataError(
                f"{where} has no labels '{term.labels}', which loss.sum names"
                f"{nearest_name(term.labels, map(str, arrays))}"
            )
        which = f"{where}: labels" + (f" '{term.labels}'" if isinstance(found, Mapping) else "")
        checked = _checked(array_of(arrays[term.labels], which), which, term)
        before = labels.setdefault(term.labels, checked)
        if before.dtype != checked.dtype or not np.array_equal(before, checked, equal_nan=True):
            raise DataError(f"{which}: two losses of the sum need different labels")
        if len(checked) != len(labels[LABELS]):
            raise DataError(f"{which} are {len(checked)}, and there are {len(labels[LABELS])} rows")
    return labels


def unfit_numbers(
    numbers: npt.NDArray[np.float32], left_out: npt.NDArray[np.bool_], term: LossTerm
) -> list[tuple[npt.NDArray[np.bool_], str]]:
    """Returns masks of labels, not classes, that a loss cannot use, each with its remedy.

    Args:
        numbers: the labels of rows, or of one row, of any shape.
        left_out: mask of the missing labels, of the same shape.
        term: the loss.
    """
    found = [
        (
            ~np.isfinite(numbers) & ~left_out,
            "leave the row out, or correct it; only in [rows, T, D] a NaN says that a place does "
            "not count",
        )
    ]
    if term.single_task == "multi_label":
        wrong = (numbers != 0) & (numbers != 1)
        found.append((wrong, f"loss {term.choice} wants 0 or 1; {SUITING_LOSSES}"))
    if term.single_task == "counts":
        what = f"loss {term.choice} wants counts, from 0; {SUITING_LOSSES}"
        found.append((numbers < 0, what))
    return found


def counted(labels: LabelArray) -> npt.NDArray[np.bool_]:
    """Returns a mask of the labels that count, in the shape of the labels."""
    return labels != IGNORED_LABEL if labels.dtype.kind == "i" else ~np.isnan(labels)


def spreads(labels: LabelArray) -> npt.NDArray[np.float64]:
    """Returns the unit of every column of labels, [D]: its standard deviation.

    A column that hardly varies has no use for it: the unit is at least `LEAST_SPREAD` of the size
    of its numbers. A column of zeros alone, or without any label, has that of `whole_spread`.
    """
    deviations, sizes = _deviations_and_sizes(labels)
    has_size = sizes > ROUNDING_SHARE * deviations.max()
    found: npt.NDArray[np.float64] = np.maximum(deviations, LEAST_SPREAD * sizes)
    return np.where(has_size, found, whole_spread(labels))


def whole_spread(labels: LabelArray) -> float:
    """Returns the standard deviation of all columns that vary together, like the RMSE.

    If none does, it is `LEAST_SPREAD` of the size of their numbers; 1 for zeros.
    """
    deviations, sizes = _deviations_and_sizes(labels)
    varying = deviations[deviations > LEAST_SPREAD * sizes]
    if varying.size:
        return float(np.sqrt((varying**2).mean()))
    return LEAST_SPREAD * float(np.sqrt((sizes**2).mean())) or 1.0


def _deviations_and_sizes(
    labels: LabelArray,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the standard deviation and the root mean square of every column, [D] each."""
    columns = labels.reshape(-1, 1 if labels.ndim == 1 else labels.shape[-1]).astype(np.float64)
    told = np.where(np.isnan(columns).all(axis=0), 0.0, columns)
    return np.nanstd(told, axis=0), np.sqrt(np.nanmean(told**2, axis=0))


def first_row(wrong: npt.NDArray[np.bool_]) -> int | None:
    """Returns the first row with a true value; None if there is none."""
    rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    return int(rows[0]) if rows.size else None


def _checked(labels: Array, where: str, term: LossTerm) -> LabelArray:
    task = term.single_task
    most_axes = {"classes": 2, "multi_label": 2}.get(task, 3)
    if labels.size == 0 or not 1 <= labels.ndim <= most_axes or labels.dtype.kind not in "iufb":
        odd = first_odd_row(labels) if labels.dtype.kind == "O" else None
        raise DataError(
            f"{where} are {labels.dtype} {list(labels.shape)}{'' if odd is None else f' ({odd})'}, "
            f"and loss {term.choice} is about {LABELS_IN_WORDS[task]}; give those, or take another "
            f"loss: {SUITING_LOSSES}"
        )
    if task == "classes":
        return _classes(labels, where, term)
    with np.errstate(over="ignore"):  # values beyond FP32 are refused below
        numbers = labels.astype(np.float32)
    # Padded places have no number; a row of one label has nothing to leave out.
    left_out = np.isnan(numbers) if labels.ndim == 3 else np.zeros(labels.shape, np.bool_)
    for wrong, what in unfit_numbers(numbers, left_out, term):
        _refuse(labels, wrong, where, what)
    _check_rows(~left_out, where)
    return numbers


def _classes(labels: Array, where: str, term: LossTerm) -> LabelArray:
    if labels.dtype.kind not in "iu":
        value = labels.ravel()[0]
        raise DataError(
            f"{where} are {labels.dtype} {list(labels.shape)} (the first is {value}), and loss "
            f"{term.choice} is about {LABELS_IN_WORDS['classes']}; give those, or take another "
            f"loss: {SUITING_LOSSES}"
        )
    numbers = np.where(labels == term.ignore_index, IGNORED_LABEL, labels.astype(np.int64))
    _check_rows(numbers != IGNORED_LABEL, where)
    return numbers


def _check_rows(counts: npt.NDArray[np.bool_], where: str) -> None:
    row = first_row(np.logical_not(counts.reshape(len(counts), -1).any(axis=1, keepdims=True)))
    if row is not None:
        raise DataError(f"{where}: none of row {row} counts; leave such rows out")


def _refuse(labels: Array, wrong: npt.NDArray[np.bool_], where: str, what: str) -> None:
    row = first_row(wrong)
    if row is not None:
        value = labels[row][wrong[row]].ravel()[0] if labels.ndim > 1 else labels[row]
        raise DataError(f"{where}: row {row} has {value}; {what}")
