"""Checks that the outputs of a model match the labels. No torch.

In: the model's outputs for two rows, and the splits, before the training; then the labels of rows
that are read during the training. Out: nothing, or an error that names the output, the first row
that does not match, and the remedy.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from training.errors import DataError, RecipeError, TargetError
from training.loading.label_arrays import IGNORED_LABEL, LabelArray, counted, first_row
from training.loading.row_order import Places
from training.loading.splits import Splits
from training.recipe.parts.loss_parts import LABELS, LossTerm
from training.recipe.recipe import Recipe
from training.sources.paths import SPLITS

EXACT_MATCH = "val/exact_match"
WHAT_TO_DO = "give model.args as many classes as the data has, or correct the labels"


def check_labels_fit(
    outputs: Mapping[str, Array], splits: Splits, recipe: Recipe, inputs: str
) -> None:
    """Checks the outputs against the labels of every loss.

    Args:
        outputs: outputs for the first two training rows, by name, in order.
        splits: the data.
        recipe: the run.
        inputs: names and shapes of those rows, for messages.

    Raises:
        TargetError: an output has not the shape that the labels require.
        DataError: a label is not one of the classes.
        RecipeError: these labels do not have the metric `stop.metric`.
    """
    train = splits.train.every_labels()
    for term in recipe.loss.terms:
        name = term.output or next(iter(outputs))
        _check_shape(outputs[name], train[term.labels][:2], term, name, recipe, inputs)
        if term.single_task == "classes":
            _check_classes(splits, term, classes=outputs[name].shape[-1])
    if recipe.stop.metric == EXACT_MATCH and splits.train.labels.ndim == 1:
        raise RecipeError(
            f"stop.metric is '{EXACT_MATCH}', and each row has one label only; use 'val/accuracy'"
        )


def check_row_classes(
    labels: npt.NDArray[np.int64], rows: Places, classes: int, where: str
) -> None:
    """Checks the labels of rows that were just read against the model's classes.

    Args:
        labels: as in `training.datasets.Split`, [N] or [N, T].
        rows: their places in the split, [N].
        classes: number of the model's classes.
        where: name of the split, for messages.

    Raises:
        DataError: a label is none of the classes.
    """
    wrong = (labels != IGNORED_LABEL) & ((labels < 0) | (labels >= classes))
    row = first_row(wrong)
    if row is not None:
        raise DataError(
            f"{where}: row {rows[row]} has the label {labels[row][wrong[row]].flat[0]}, and the "
            f"model has {classes} classes, from 0; {WHAT_TO_DO}"
        )


def _check_shape(
    output: Array, labels: LabelArray, term: LossTerm, name: str, recipe: Recipe, inputs: str
) -> None:
    shape = labels.shape[1:]
    places = ", ".join(["rows", *map(str, shape)])
    if term.single_task == "classes":
        fits = output.shape[:-1] == labels.shape
        expected = f"[{places}, classes]"
    else:
        fits = output.shape == labels.shape or (
            labels.ndim == 1 and output.shape == (*labels.shape, 1)
        )
        expected = f"[{places}]" if shape else "[rows] or [rows, 1]"
    if fits:
        return
    which = "the first output" if name == recipe.model.outputs[0] else f"output '{name}'"
    raise TargetError(
        f"model.target {recipe.model.target} gives shape {list(output.shape)} for inputs {inputs}; "
        f"{which} must be {expected}, for the {_in_words(term)} are {list(labels.shape)} and loss "
        f"{term.choice} is about {term.single_task}"
    )


def _check_classes(splits: Splits, term: LossTerm, classes: int) -> None:
    """Checks that labels are numbers of classes; the error has the first wrong one's row."""
    by_split = {name: getattr(splits, name).every_labels()[term.labels] for name in SPLITS}
    by_split["train"], lazy = splits.train_labels[term.labels], splits.lazy_train
    for split_name, labels in by_split.items():
        wrong = counted(labels) & ((labels < 0) | (labels >= classes))
        row = first_row(wrong)
        if row is None:
            continue
        value = labels[row] if labels.ndim == 1 else labels[row][wrong[row]][0]
        if split_name == "train" and lazy is not None and lazy.labels is None:
            row = int(lazy.places(len(labels))[row])  # only some rows were read
        told = [one[counted(one)] for one in by_split.values()]
        low, high = min(int(one.min()) for one in told), max(int(one.max()) for one in told)
        raise DataError(
            f"split '{split_name}': the {_in_words(term)} go from {low} to {high}, and the model "
            f"has {classes} classes, from 0; the first that is none is {value}, in row {row}; "
            f"{WHAT_TO_DO}"
        )


def _in_words(term: LossTerm) -> str:
    return "labels" if term.labels == LABELS else f"labels '{term.labels}'"
