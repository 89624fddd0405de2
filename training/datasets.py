"""Data: the contract of a data set, and scikit-learn's digits. Does not import torch.

A data set is a function that returns a mapping with `train`, `validation` and `test`, each a pair
`(inputs, labels)`. It is called with `args` of the recipe and, if it has a parameter `seed`, with
the seed of the run. Inputs are NumPy arrays by tensor name, each [rows, ...], and labels are one
array, [rows, ...], whose type and shape follow from the loss: whole numbers for classes, 0 and 1,
or numbers (`loading/label_arrays.py`). For a sum of losses labels may be a mapping of several
arrays, of which `labels` is the one that evaluates the model. The names of the inputs become those
of the published model. A split may also be an object that returns single rows
(`loading/lazy_rows.py`): training rows are then read on demand, and the rows of the other splits
all at once. The sources that recipes name instead of a function are in `training.sources`.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from flambeau.protocol.tensors import (
    Array,
    TensorError,
    as_bytes,
    datatype_of,
    object_array,
)
from model_store.manifest import DataOrigin
from training.errors import DataError
from training.loading.label_arrays import IGNORED_LABEL as IGNORED_LABEL
from training.loading.label_arrays import first_row, label_arrays
from training.loading.lazy_rows import SAMPLE_ROWS, lazy_rows
from training.loading.mixed_rows import array_of, first_odd_row
from training.loading.splits import Split, Splits
from training.recipe.parts.data_parts import Shares
from training.recipe.parts.loss_parts import LABELS, LossPart
from training.recipe.parts.preprocess import python_step
from training.recipe.recipe import Recipe
from training.recipe.targets import call_target
from training.sources.data_files import DataReach
from training.sources.load import load_source
from training.sources.paths import SPLITS
from training.sources.scikit_learn import read_scikit_learn
from training.sources.shares import put_apart

__all__ = ["IGNORED_LABEL", "Split", "Splits", "digits", "load_splits"]


def load_splits(recipe: Recipe, reach: DataReach | None = None) -> Splits:
    """Reads the recipe's source, or calls its data set, and checks the result.

    Args:
        recipe: the run.
        reach: files that may be read; None for any file.

    Raises:
        TargetError: the data set cannot be found or does not take its arguments.
        DataError: a source cannot be read, or three splits do not agree with each other.
    """
    data = recipe.data
    if data.target is not None:
        found = call_target(data.target, data.args, "data", {"seed": recipe.seed})
        return replace(_splits(found, recipe), origin=DataOrigin(source=data.target))
    classes = recipe.loss.judged_task == "classes"
    named = recipe.answer_labels()
    loaded = load_source(data, recipe.seed, named, reach or DataReach(), classes)
    origin = DataOrigin(source=data.name, files=loaded.files)
    splits = _splits(loaded.splits, recipe)
    return replace(splits, origin=origin, class_names=loaded.class_names)


def with_class_names(recipe: Recipe, splits: Splits) -> Recipe:
    """Returns the recipe, with the names of the data's classes if it has none of its own."""
    output = recipe.model.outputs[0]
    if not splits.class_names or output in recipe.labels:
        return recipe
    return recipe.model_copy(update={"labels": {**recipe.labels, output: splits.class_names}})


def _splits(found: object, recipe: Recipe) -> Splits:
    name = recipe.data.name
    if not isinstance(found, Mapping) or set(found) != set(SPLITS):
        what = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise DataError(f"{name} returned {what}; return a mapping with {list(SPLITS)}")
    text = python_step(recipe.preprocess) is not None
    where = {part: f"{name}: split '{part}'" for part in SPLITS}
    lazy = {part: lazy_rows(found[part], where[part], recipe) for part in SPLITS}
    arrays = {part: found[part] for part in SPLITS}
    for part, rows in lazy.items():
        if rows is not None and text:
            raise DataError(
                f"{where[part]} is read row by row, and preprocess has a python step, which takes "
                "arrays; do it in the data set, or give arrays"
            )
        if rows is not None:
            arrays[part] = rows.read(SAMPLE_ROWS if part == "train" else None)
    train, validation, test = (
        _split(arrays[part], where[part], recipe.loss, text) for part in SPLITS
    )
    for part, split in (("validation", validation), ("test", test)):
        if _layout(split) != _layout(train):
            raise DataError(
                f"{name}: split '{part}' has {_layout(split)} and 'train' has {_layout(train)}; "
                "names, types and row shapes must agree"
            )
    # A model is called with its inputs in order, and every split must have the same.
    validation, test = (
        replace(split, inputs={key: split.inputs[key] for key in train.inputs})
        for split in (validation, test)
    )
    return Splits(train, validation, test, lazy["train"])


def digits(
    seed: int, validation_share: float = 0.15, test_share: float = 0.2
) -> dict[str, tuple[dict[str, Array], Array]]:
    """scikit-learn's handwritten digits: 1,797 images of 8 x 8, 10 classes, shipped with it.

    Args:
        seed: decides the split of each image; every split keeps the share of each digit.
        validation_share: share of all other images, to choose the best epoch by.
        test_share: share of all images, for the test.

    Returns:
        `image`, FP32 [rows, 1, 8, 8] from 0 to 1, and the digits, INT64 [rows], by split.

    Raises:
        DataError: a share is not between 0 and 1, or leaves a split too small.
    """
    rows, names = read_scikit_learn("digits")
    # Unvalidated: `put_apart` reports a share that makes no sense.
    shares = Shares.model_construct(
        validation_share=validation_share, test_share=test_share, seed=seed
    )
    apart = put_apart({"train": rows}, shares, seed, names, classes=True)
    return {split: (found.inputs, found.labels) for split, found in apart.items()}


def _split(found: object, where: str, loss: LossPart, text: bool) -> Split:
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Mapping):
        raise DataError(f"{where} is not a pair (inputs by name, labels)")
    inputs = {
        str(name): array_of(rows, f"{where}: input '{name}'") for name, rows in found[0].items()
    }
    others = label_arrays(found[1], where, loss)
    labels = others.pop(LABELS)
    if not inputs:
        raise DataError(f"{where} has no inputs; give at least one array by name")
    for name, array in inputs.items():
        if array.ndim == 0 or len(array) != len(labels):
            raise DataError(
                f"{where}: input '{name}' has shape {list(array.shape)} and there are "
                f"{len(labels)} labels; give one row for each"
            )
        inputs[name] = _checked(array, f"{where}: input '{name}'", text)
    return Split(inputs, labels, others)


def _checked(array: Array, where: str, text: bool) -> Array:
    """Returns the array; strings become `bytes` objects if a Python step takes them."""
    try:
        if datatype_of(array) != "BYTES":
            _check_finite(array, where)
            return array
    except TensorError as error:
        raise DataError(f"{where}: {error}") from error
    if text:
        return _texts(array, where)
    odd = first_odd_row(array) if array.dtype.kind == "O" else None
    raise DataError(
        f"{where} holds text or objects{'' if odd is None else f' ({odd})'}, and torch takes "
        "numbers only; a step `python` in preprocess can make numbers of text"
    )


def _texts(array: Array, where: str) -> Array:
    found: list[bytes] = []
    for row, texts in enumerate(array.reshape(len(array), -1).tolist()):
        try:
            found += map(as_bytes, texts)
        except TensorError as error:
            raise DataError(f"{where}: row {row}: {error}") from error
    return object_array(found).reshape(array.shape)


def _check_finite(array: Array, where: str) -> None:
    row = None if array.dtype.kind != "f" else first_row(~np.isfinite(array))
    if row is not None:
        value = next(float(v) for v in array[row].ravel() if not np.isfinite(v))
        raise DataError(
            f"{where}: row {row} holds {value}; leave the row out, or put a number in its place"
        )


def _layout(split: Split) -> dict[str, str]:
    return {
        name: f"{datatype_of(array)} {[-1, *array.shape[1:]]}" for name, array in split.arrays()
    }
