"""Data: what a data set is, and scikit-learn's digits. No torch.

A data set is a function `f(seed, **args)` that returns a mapping with `train`, `validation` and
`test`, each a pair `(inputs, labels)`: inputs are NumPy arrays by tensor name, each [rows, ...],
and labels are whole numbers [rows], or [rows, T] where each row has T of them. The names become
the inputs of the published model.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.tensors import (
    Array,
    TensorError,
    as_bytes,
    datatype_of,
    encode_bytes_elements,
    object_array,
)
from training.errors import DataError
from training.preprocess import python_step
from training.recipe import Recipe
from training.targets import call_target

SPLIT_NAMES = ("train", "validation", "test")
IGNORED_LABEL = -100
"""Stands for the recipe's `ignore_index` in every split: this place does not count."""
GOLDEN_ROWS = 64
"""Held-out rows that every server replays when it loads the version."""


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of one purpose."""

    inputs: dict[str, Array]
    """By tensor name, each [rows, ...]."""
    labels: npt.NDArray[np.int64]
    """The class of each row, [rows], or of each of its T places, [rows, T]; `IGNORED_LABEL` where
    none counts."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.labels)

    def golden_inputs(self) -> dict[str, Array]:
        """The inputs of the first rows."""
        return {name: array[:GOLDEN_ROWS] for name, array in self.inputs.items()}


@dataclass(frozen=True, slots=True)
class Splits:
    """The three splits of a run: learn from one, choose by one, judge by one."""

    train: Split
    validation: Split
    test: Split

    def sha256(self) -> str:
        """A digest of every name, type, shape and byte, in a fixed order."""
        digest = hashlib.sha256()
        for name, split in zip(SPLIT_NAMES, (self.train, self.validation, self.test), strict=True):
            for tensor, array in [*sorted(split.inputs.items()), ("labels", split.labels)]:
                digest.update(f"{name} {tensor} {array.dtype.str} {array.shape}\n".encode())
                text = datatype_of(array) == "BYTES"
                rows = np.ascontiguousarray(array)
                digest.update(encode_bytes_elements(rows) if text else rows.tobytes())
        return digest.hexdigest()


def load_splits(recipe: Recipe) -> Splits:
    """Calls the recipe's data set and checks what it returns.

    Raises:
        TargetError: the data set cannot be found or does not take its arguments.
        DataError: what it returns is not three splits that agree with each other.
    """
    target = recipe.data.target
    found = call_target(target, {"seed": recipe.seed, **recipe.data.args}, "data")
    if not isinstance(found, Mapping) or set(found) != set(SPLIT_NAMES):
        what = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise DataError(f"{target} returned {what}; return a mapping with {list(SPLIT_NAMES)}")
    ignored = recipe.loss.ignore_index
    text = python_step(recipe.preprocess) is not None
    train, validation, test = (
        _split(found[name], f"{target}: split '{name}'", ignored, text) for name in SPLIT_NAMES
    )
    for name, split in (("validation", validation), ("test", test)):
        if _layout(split) != _layout(train):
            raise DataError(
                f"{target}: split '{name}' has {_layout(split)} and 'train' has {_layout(train)}; "
                "names, types and row shapes must agree"
            )
    # A model is called with its inputs in order, and every split must have the same.
    validation, test = (
        Split({name: split.inputs[name] for name in train.inputs}, split.labels)
        for split in (validation, test)
    )
    return Splits(train, validation, test)


def digits(
    seed: int, validation_share: float = 0.15, test_share: float = 0.2
) -> dict[str, tuple[dict[str, Array], Array]]:
    """scikit-learn's handwritten digits: 1,797 images of 8 x 8, 10 classes, shipped with it.

    Args:
        seed: decides which image goes where; every split keeps the share of each digit.
        validation_share: share of what is not test, to choose the best epoch by.
        test_share: share of all images, to judge by.

    Returns:
        `image`, FP32 [rows, 1, 8, 8] from 0 to 1, and the digits, INT64 [rows], by split.

    Raises:
        DataError: a share is not between 0 and 1, or leaves a split too small.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)[:, None]
    labels = bunch.target.astype(np.int64)
    try:
        rest, test = train_test_split(
            np.arange(len(labels)), test_size=test_share, stratify=labels, random_state=seed
        )
        train, validation = train_test_split(
            rest, test_size=validation_share, stratify=labels[rest], random_state=seed
        )
    except ValueError as error:
        raise DataError(
            f"digits cannot be split with validation_share {validation_share} and test_share "
            f"{test_share}: {error}"
        ) from error
    rows = {"train": train, "validation": validation, "test": test}
    return {name: ({"image": images[index]}, labels[index]) for name, index in rows.items()}


def _split(found: object, where: str, ignored: int, text: bool) -> Split:
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Mapping):
        raise DataError(f"{where} is not a pair (inputs by name, labels)")
    inputs = {str(name): np.ascontiguousarray(array) for name, array in found[0].items()}
    labels = np.asarray(found[1])
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iu" or labels.size == 0:
        raise DataError(
            f"{where}: labels are {labels.dtype} {list(labels.shape)}; give whole numbers [rows] "
            "or [rows, T]"
        )
    labels = np.where(labels == ignored, IGNORED_LABEL, labels.astype(np.int64))
    counted = (labels != IGNORED_LABEL).reshape(len(labels), -1).any(axis=1)
    if not counted.all():
        row = int(np.flatnonzero(~counted)[0])
        raise DataError(f"{where}: no label of row {row} counts; leave such rows out")
    if not inputs:
        raise DataError(f"{where} has no inputs; give at least one array by name")
    for name, array in inputs.items():
        if array.ndim == 0 or len(array) != len(labels):
            raise DataError(
                f"{where}: input '{name}' has shape {list(array.shape)} and there are "
                f"{len(labels)} labels; give one row for each"
            )
        inputs[name] = _checked(array, f"{where}: input '{name}'", text)
    return Split(inputs, labels)


def _checked(array: Array, where: str, text: bool) -> Array:
    """The array; strings as objects of type `bytes`, where a Python step takes them."""
    try:
        if datatype_of(array) != "BYTES":
            return array
        if text:
            return object_array([as_bytes(e) for e in array.ravel().tolist()]).reshape(array.shape)
    except TensorError as error:
        raise DataError(f"{where}: {error}") from error
    raise DataError(
        f"{where} holds text or objects, and torch takes numbers only; a step "
        "`python` in preprocess can make numbers of it"
    )


def _layout(split: Split) -> dict[str, str]:
    arrays = [*sorted(split.inputs.items()), ("labels", split.labels)]
    return {name: f"{datatype_of(array)} {[-1, *array.shape[1:]]}" for name, array in arrays}
