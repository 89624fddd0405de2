"""Makes any batch of any epoch, independently of the others.

In: the training rows, and the place of a batch. Out: the batch: its rows in the order of the epoch,
read, cut to the longest of them if the sampler is `bucketed`, and augmented.
"""

import math
from typing import NamedTuple

import numpy as np

from flambeau.protocol.signature import SignatureError
from flambeau.protocol.tensors import Array
from model_store.arrays.padded_rows import own_lengths
from training.distributed.ranks import ALONE, Ranks
from training.errors import DataError, RecipeError
from training.loading.augmentation import Augmentation
from training.loading.batch import TrainingBatch
from training.loading.label_fit import check_row_classes
from training.loading.lazy_rows import LazyRows
from training.loading.row_order import (
    Floats,
    Places,
    bucketed,
    checked_weights,
    class_weights,
    drawn,
    shuffled,
)
from training.loading.splits import Split, Splits
from training.recipe.parts.loss_parts import LABELS
from training.recipe.recipe import Recipe
from training.recipe.targets import call_named, load_target


class Place(NamedTuple):
    """The position of a batch in the run."""

    epoch: int
    """From 0."""
    batch: int
    """Index within the epoch, from 0."""


class BatchMaker:
    """Makes batches for a `training.loading.loader.Loader`; same arguments and errors."""

    def __init__(
        self,
        splits: Splits,
        recipe: Recipe,
        ranks: Ranks = ALONE,
        classes: int | None = None,
    ) -> None:
        self._recipe, self._ranks, self._classes = recipe, ranks, classes
        self._split = splits.train
        self._lazy: LazyRows | None = splits.lazy_train
        self._all_rows = self._split.rows if self._lazy is None else self._lazy.rows
        self.rows = _rows_of_epoch(recipe, self._all_rows)
        self._lengths: Places | None = None
        self._weights: Floats | None = None
        self._prepare_sampler()
        self._augmentation: Augmentation | None = None
        if recipe.data.augment:
            augment = recipe.data.augment
            self._augmentation = Augmentation(augment, recipe.seed, self._split.inputs)
        self._order_of = -1
        self._order: Places = np.empty(0, np.int64)

    @property
    def batches(self) -> int:
        """The number of batches of one epoch; the last may be short."""
        return math.ceil(self.rows / self._recipe.data.batch_size)

    def make(self, place: Place) -> TrainingBatch:
        """Returns this rank's part of a batch.

        Raises:
            DataError: a row cannot be read, or has a label that is no class of the model, or a
                function of `augment` fails.
        """
        size, seed = self._recipe.data.batch_size, self._recipe.seed
        start, stop = place.batch * size, min((place.batch + 1) * size, self.rows)
        rows, counts = self._ranks.share(self._order_of_epoch(place.epoch)[start:stop])
        if self._lazy is not None:
            inputs, told = self._lazy.take(rows, place.epoch, seed)
            if self._classes is not None:  # rows in memory were all checked before
                where = f"{self._recipe.data.name}: split 'train'"
                check_row_classes(told.astype(np.int64, copy=False), rows, self._classes, where)
            labels = {LABELS: told}
        else:
            inputs, labels = self._taken(rows)
        if self._augmentation is not None:
            places, _ = self._ranks.share(np.arange(start, stop))
            inputs = self._augmentation.change(inputs, place.epoch, places)
        return TrainingBatch.of(rows, inputs, labels, counts)

    def _taken(self, rows: Places) -> tuple[dict[str, Array], dict[str, Array]]:
        """Takes rows of arrays; cuts them to the longest if their lengths are known."""
        # `take` needs half the time of indexing by an array for a small batch.
        inputs = {name: array.take(rows, axis=0) for name, array in self._split.inputs.items()}
        every = self._split.every_labels()
        labels: dict[str, Array] = {name: every[name].take(rows, axis=0) for name in every}
        if self._lengths is None or not len(rows):
            return inputs, labels
        padding = self._recipe.padding
        assert padding is not None, "only rows of different lengths have lengths"
        longest = int(self._lengths[rows].max())
        length = padding.bucket_of(longest) if padding.static else longest
        short = {n: _cut(array, padding.axis_of(n), length) for n, array in inputs.items()}
        axis = 1 if self._recipe.model.outputs[0] in padding.outputs else None
        return short, {name: _cut(array, axis, length) for name, array in labels.items()}

    def _order_of_epoch(self, epoch: int) -> Places:
        if self._order_of != epoch:
            self._order, self._order_of = self._ordered(epoch), epoch
        return self._order

    def _ordered(self, epoch: int) -> Places:
        seed, sampler = self._recipe.seed, self._recipe.data.sampler
        if self._lazy is not None and not self._lazy.random_access:
            return np.arange(self.rows)
        if self._weights is not None:
            return drawn(self._weights, seed, epoch)
        if sampler.bucketed is not None and self._lengths is not None:
            size, window = self._recipe.data.batch_size, sampler.bucketed.window
            return bucketed(self._lengths, size, window, seed, epoch)
        return shuffled(self._all_rows, seed, epoch)

    def _prepare_sampler(self) -> None:
        """Collects the weights or lengths of all rows that the sampler needs.

        Raises:
            RecipeError: the data does not have them, or cannot have such a sampler.
        """
        sampler, lazy, where = self._recipe.data.sampler, self._lazy, self._recipe.data.name
        if sampler.plain is not None:
            return
        if lazy is not None and not lazy.random_access:
            raise RecipeError(
                f"data.sampler {sampler.choice} must know all rows, and {where} gives a stream, "
                "which decides the order itself; take plain"
            )
        labels = self._split.labels if lazy is None else lazy.labels
        if sampler.balanced is not None:
            self._weights = class_weights(labels, where)
        elif sampler.weighted is not None:
            target = sampler.weighted.target
            if lazy is not None:
                raise RecipeError(
                    f"data.sampler.weighted needs all training rows in memory, and {where} is read "
                    "row by row; draw there, or take balanced"
                )
            key = "data.sampler.weighted.target"
            function, args = load_target(target, key), sampler.weighted.args
            weights = call_named(function, f"{key} {target}", self._split.inputs, labels, **args)
            self._weights = checked_weights(weights, self._all_rows, target)
        else:
            self._lengths = self._told_lengths(self._split, where)

    def _told_lengths(self, split: Split, where: str) -> Places:
        padding = self._recipe.padding
        if padding is None:
            raise RecipeError("data.sampler bucketed needs padding, which says what has a length")
        if self._lazy is not None:
            if self._lazy.lengths is None:
                raise RecipeError(
                    f"data.sampler bucketed must know every length beforehand; give the data set "
                    f"of {where} an attribute `lengths`, [rows], or take another sampler"
                )
            return self._lazy.lengths
        if padding.mask is None and padding.lengths is None:
            raise RecipeError(
                "data.sampler bucketed needs padding.mask or padding.lengths, which say how long "
                "each row is"
            )
        try:
            return own_lengths(split.inputs, padding)
        except SignatureError as error:
            raise DataError(f"the data does not fit the padding: {error}") from error


def _cut(array: Array, axis: int | None, length: int) -> Array:
    if axis is None or array.ndim <= axis:
        return array
    return np.ascontiguousarray(array[(*[slice(None)] * axis, slice(length))])


def _rows_of_epoch(recipe: Recipe, rows: int) -> int:
    """Returns the number of all rows, or of those of the recipe's steps.

    Raises:
        RecipeError: the recipe has more steps than the rows allow.
    """
    steps = recipe.train.steps_per_epoch
    if steps is None:
        return rows
    most = math.ceil(math.ceil(rows / recipe.data.batch_size) / recipe.optim.accumulate)
    if steps > most:
        raise RecipeError(
            f"train.steps_per_epoch is {steps}, and {rows} rows make {most} steps; lower it, or "
            "leave it out to take every row once"
        )
    return min(rows, steps * recipe.optim.accumulate * recipe.data.batch_size)
