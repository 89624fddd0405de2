"""Rows that come one by one, made into arrays: checked, and padded where their lengths differ.

In: rows as a data set gives them, each a pair (inputs by name, label). Out: arrays of all of them.

Rule kept here: every row has the names, types and shapes of the first one, but for its length; one
that has not is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.signature import SignatureError
from model_store.tensors import Array, TensorError, datatype_of
from training.errors import DataError
from training.loading.label_arrays import IGNORED_LABEL, unfit_numbers
from training.recipe.parts.task import LABELS_IN_WORDS
from training.recipe.recipe import Recipe
from training.recipe.user_code import failure_in_words


@dataclass(frozen=True, slots=True)
class Row:
    """One row, without the rows' axis."""

    inputs: dict[str, Array]
    label: Array
    """As `training.datasets.Split` has labels."""


class RowJoiner:
    """Makes arrays of rows, as a recipe's `padding` and `loss` say.

    Args:
        recipe: the run.
        where: names the data set in messages.
    """

    def __init__(self, recipe: Recipe, where: str) -> None:
        self._where = where
        self._padding = recipe.padding
        self._task, self._losses = recipe.loss.judged_task, recipe.loss.terms
        self._ignored = recipe.loss.terms[0].ignore_index
        # What stands where a shorter row has no label.
        self._no_label = float(IGNORED_LABEL) if self._task == "classes" else np.nan
        outputs = {} if recipe.padding is None else recipe.padding.outputs
        self._labels_vary = recipe.model.outputs[0] in outputs

    def read(self, read: Callable[[], object], place: int) -> Row:
        """One row of a data set, as arrays.

        Args:
            read: gives what the data set has there.
            place: of the row, from 0.

        Raises:
            DataError: it cannot be read, is no pair of inputs by name and a label, has text in it,
                or a label that the loss cannot take. What is a class only the model knows.
        """
        where = self._name(place)
        try:
            found = read()
        except Exception as error:  # the data set is the user's: it may raise anything
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
        """INT64 for classes, FP32 for all else."""
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
        """Labels that are no classes, and which of them count."""
        with np.errstate(over="ignore"):  # what is beyond FP32 is refused below
            numbers = label.astype(np.float32)
        left_out = np.isnan(numbers) & (label.ndim == 2)  # as in `label_arrays`, with rows
        for loss in self._losses:
            for wrong, what in unfit_numbers(numbers, left_out, loss):
                if wrong.any():
                    raise DataError(f"{where}: its label has {label[wrong].flat[0]}; {what}")
        return numbers, ~left_out

    def classes(self, labels: Array) -> npt.NDArray[np.int64]:
        """Labels that name classes as INT64, with `IGNORED_LABEL` where none counts."""
        return np.where(labels == self._ignored, IGNORED_LABEL, labels.astype(np.int64))

    def join(
        self, rows: Sequence[Row], places: Sequence[int], like: Row, full: bool = False
    ) -> tuple[dict[str, Array], Array]:
        """Inputs and labels of rows, each [N, ...], padded where they vary in length.

        Args:
            rows: N of them; there may be none.
            places: of each, for messages, [N].
            like: the row whose names, types and shapes all have.
            full: pads to the largest bucket, and not to the longest of the rows.

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
        """The axis of a row that holds the length; the rows' own is not there."""
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
        """The mask and the lengths, where the data set leaves them out."""
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
    """Arrays of rows as one, [N, ...], padded on the right along an axis."""
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
