"""Stacks single rows into arrays: checks them, and pads those of different lengths.

In: rows of a data set, each a pair (inputs by name, label). Out: arrays of all rows.

Rule: every row has the names, types and shapes of the first one, except for its length; the error
names a row that has not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flambeau.protocol.signature import SignatureError
from flambeau.protocol.tensors import Array, TensorError, datatype_of
from training.errors import DataError
from training.loading.label_arrays import IGNORED_LABEL, unfit_numbers
from training.recipe.parts.task import LABELS_IN_WORDS
from training.recipe.recipe import Recipe
from training.recipe.user_code import failure_in_words


@dataclass(frozen=True, slots=True)
class Row:
    """One row, without the row axis."""

    inputs: dict[str, Array]
    label: Array
    """Label in the form of `training.datasets.Split.labels`."""


class RowJoiner:
    """Makes arrays of rows by a recipe's `padding` and `loss`.

    Args:
        recipe: the run.
        where: name of the data set in messages.
    """

    def __init__(self, recipe: Recipe, where: str) -> None:
        self._where = where
        self._padding = recipe.padding
        self._task, self._losses = recipe.loss.judged_task, recipe.loss.terms
        self._ignored = recipe.loss.terms[0].ignore_index
        # Fills the places at which a shorter row has no label.
        self._no_label = float(IGNORED_LABEL) if self._task == "classes" else np.nan
        outputs = {} if recipe.padding is None else recipe.padding.outputs
        self._labels_vary = recipe.model.outputs[0] in outputs

    def read(self, read: Callable[[], object], place: int) -> Row:
        """Reads one row of a data set, as arrays.

        Args:
            read: returns the data set's item.
            place: the row's place, from 0.

        Raises:
            DataError: it cannot be read, is no pair of inputs by name and a label, contains text,
                or has a label that the loss cannot use. Only the model knows the classes.
        """
        where = self._name(place)
        try:
            found = read()
        except Exception as error:  # the user's data set may raise any exception
            raise DataError(f"{where} cannot be read: {failure_in_words(error)}") from error
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Mapping):
            raise DataError(f"{where} is not a pair (inputs by name, label)")
        inputs = {str(name): np.asarray(value) for name, value in found[0].items()}
        label = self._label(np.asarray(found[1]), where)
        for name, array in inputs.items():
            _check_numbers(array, f"{where}: input '{name}'")
        if not inputs:
            raise DataError(f"{where} has no inputs; give at least one array by name")
        return Row(inputs, label)

    def _label(self, label: Array, where: str) -> Array:
        """Converts a label: INT64 for classes, FP32 otherwise."""
        classes = self._task == "classes"
        if label.ndim > 2 or label.dtype.kind not in ("iu" if classes else "iufb"):
            raise DataError(
                f"{where}: its label is {label.dtype} {list(label.shape)}, and the loss is about "
                f"{LABELS_IN_WORDS[self._task]}; give one row of those, or take another loss"
            )
        found: Array
        if classes:
            found = self.classes(label)
            counts = found != IGNORED_LABEL
        else:
            found, counts = self._numbers(label, where)
        if not counts.any():
            raise DataError(f"{where}: none of its labels counts; leave such rows out")
        return found

    def _numbers(self, label: Array, where: str) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Converts labels that are no classes; returns them and a mask of those that count."""
        with np.errstate(over="ignore"):  # values beyond FP32 are refused below
            numbers = label.astype(np.float32)
        left_out = np.isnan(numbers) & (label.ndim == 2)  # as in `label_arrays`, with rows
        for loss in self._losses:
            for wrong, what in unfit_numbers(numbers, left_out, loss):
                if wrong.any():
                    raise DataError(f"{where}: its label has {label[wrong].flat[0]}; {what}")
        return numbers, ~left_out

    def classes(self, labels: Array) -> npt.NDArray[np.int64]:
        """Converts class labels to INT64, with `IGNORED_LABEL` for those that do not count."""
        return np.where(labels == self._ignored, IGNORED_LABEL, labels.astype(np.int64))

    def join(
        self, rows: Sequence[Row], places: Sequence[int], like: Row, full: bool = False
    ) -> tuple[dict[str, Array], Array]:
        """Joins inputs and labels of rows, each [N, ...]; pads those of different lengths.

        Args:
            rows: N rows; N may be 0.
            places: the place of each, for messages, [N].
            like: the row with the names, types and shapes of all rows.
            full: True to pad to the largest bucket, not to the longest of the rows.

        Raises:
            DataError: a row has other names, types or shapes than `like`, or is too long.
        """
        expected = self._layout(like)
        for row, place in zip(rows, places, strict=True):
            self._check(row, expected, place)
        lengths = [self._length(row, place) for row, place in zip(rows, places, strict=True)]
        length = self._padded_length(lengths, full)
        inputs = {
            name: _stacked([row.inputs[name] for row in rows], array, self._axis(name), length,
                           0.0 if self._padding is None else self._padding.values.get(name, 0.0))
            for name, array in like.inputs.items()
        }  # fmt: skip
        axis = 0 if self._labels_vary else None
        labels = _stacked([row.label for row in rows], like.label, axis, length, self._no_label)
        return inputs | self._filled_in(inputs, lengths, length), labels

    def _name(self, place: int) -> str:
        return f"{self._where}: row {place}"

    def _check(self, row: Row, expected: Mapping[str, str], place: int) -> None:
        found = self._layout(row)
        if found != expected:
            raise DataError(
                f"{self._name(place)} has {found}, and the first row has {expected}; names, types "
                "and shapes must agree, but for the axes that padding.inputs names"
            )

    def _layout(self, row: Row) -> dict[str, str]:
        labels_axis = 0 if self._labels_vary else None
        found = {n: _shape_in_words(a, self._axis(n)) for n, a in row.inputs.items()}
        return {**found, "label": _shape_in_words(row.label, labels_axis)}

    def _axis(self, name: str) -> int | None:
        """Returns the axis of a row that holds the length, without the row axis."""
        axis = None if self._padding is None else self._padding.axis_of(name)
        return None if axis is None else axis - 1

    def _length(self, row: Row, place: int) -> int:
        if self._padding is None:
            return 0
        axes = {name: axis for name in row.inputs if (axis := self._axis(name)) is not None}
        found = {name: row.inputs[name].shape[axis] for name, axis in axes.items()}
        if self._labels_vary and row.label.ndim:
            found["label"] = len(row.label)
        if len(set(found.values())) != 1:
            raise DataError(
                f"{self._name(place)} has lengths {found}; all of one row must be the same"
            )
        length = int(next(iter(found.values())))
        try:
            self._padding.bucket_of(length)
        except SignatureError as error:
            raise DataError(f"{self._name(place)}: {error}") from error
        return length

    def _padded_length(self, lengths: Sequence[int], full: bool) -> int:
        if self._padding is None or not lengths:
            return 0
        if full:
            return self._padding.buckets[-1]
        longest = max(lengths)
        return self._padding.bucket_of(longest) if self._padding.static else longest

    def _filled_in(
        self, inputs: Mapping[str, Array], lengths: Sequence[int], length: int
    ) -> dict[str, Array]:
        """Makes the mask and the lengths, if the data set does not have them."""
        found: dict[str, Array] = {}
        if self._padding is None:
            return found
        real = np.asarray(lengths, np.int64)
        if (mask := self._padding.mask) is not None and mask not in inputs:
            found[mask] = np.arange(length) < real[:, None]
        if (name := self._padding.lengths) is not None and name not in inputs:
            found[name] = real
        return found


def _stacked(
    arrays: Sequence[Array], like: Array, axis: int | None, length: int, value: float
) -> Array:
    """Stacks arrays of rows to one, [N, ...], padded on the right along an axis."""
    shape = list(like.shape)
    if axis is None:
        return np.stack(arrays) if arrays else np.empty((0, *shape), like.dtype)
    shape[axis] = length
    found = np.full((len(arrays), *shape), value, like.dtype)
    for row, array in zip(found, arrays, strict=True):
        np.moveaxis(row, axis, 0)[: array.shape[axis]] = np.moveaxis(array, axis, 0)
    return found


def _shape_in_words(array: Array, varying: int | None) -> str:
    shape = [-1 if axis == varying else size for axis, size in enumerate(array.shape)]
    return f"{array.dtype} {shape}"


def _check_numbers(array: Array, where: str) -> None:
    try:
        text = datatype_of(array) == "BYTES"
    except TensorError as error:
        raise DataError(f"{where}: {error}") from error
    if text:
        raise DataError(f"{where} holds text or objects; give numbers")
