"""Loads rows for the network: their order, batches, and the processes that prepare them.

In: the training rows of a run. Out: windows of batches, epoch by epoch, from any step on.

Rules: the order of an epoch is a function of the seed and the epoch (`row_order`), a batch can be
made without those before it, and its random numbers depend on its place in the epoch
(`augmentation`). So neither the number of processes nor the point of an interruption changes a bit.
Batches are cut from all rows, and rank r of w takes every w-th row of each from its r-th on:
together the ranks process the batches of a single process.
"""

import itertools
import math
import time
from collections.abc import Iterator

from training.distributed.ranks import ALONE, Ranks
from training.loading.batch import TrainingBatch
from training.loading.batch_maker import BatchMaker, Place
from training.loading.row_workers import prefetch
from training.loading.splits import Splits
from training.recipe.recipe import Recipe


class Loader:
    """The training rows of a run.

    Args:
        splits: the data.
        recipe: the run.
        ranks: the processes that train together. If a short last batch leaves one without a row,
            it gets a row that does not count.
        classes: number of the model's classes, to check labels of rows that are read on demand;
            None if labels are no classes.

    Raises:
        RecipeError: the sampler, the augmentation or `train.steps_per_epoch` does not fit the data.
        DataError: a row cannot be read, or has a label that is no class.
    """

    def __init__(
        self,
        splits: Splits,
        recipe: Recipe,
        ranks: Ranks = ALONE,
        classes: int | None = None,
    ) -> None:
        self._recipe = recipe
        self._maker = BatchMaker(splits, recipe, ranks, classes)
        self._batches = self._maker.batches
        self.step_rows = recipe.optim.accumulate * recipe.data.batch_size
        """Rows of one step, except for the last of an epoch."""
        self._prefetched: Iterator[TrainingBatch] | None = None
        self._next: Place | None = None
        self.waited_s = 0.0
        """Seconds for which the loop waited for batches, since the start."""

    @property
    def rows(self) -> int:
        """Rows of one epoch, of all ranks together."""
        return self._maker.rows

    @property
    def steps(self) -> int:
        """Optimizer steps in one epoch; the last batch may be short, and so may the last window."""
        return math.ceil(self._batches / self._recipe.optim.accumulate)

    def rows_of(self, step: int) -> int:
        """Returns the rows of one step of an epoch, of all ranks together."""
        return min(self.step_rows, self.rows - step * self.step_rows)

    def windows(self, epoch: int, first_step: int = 0) -> Iterator[list[TrainingBatch]]:
        """Yields the batches of each step of an epoch.

        Args:
            epoch: its number, from 0.
            first_step: first step of this epoch, from 0; earlier ones are skipped, not made.

        Raises:
            DataError: a row cannot be read.
        """
        size = self._recipe.optim.accumulate
        batches = self._from(Place(epoch, first_step * size))
        while True:
            since = time.perf_counter()
            window = list(itertools.islice(batches, size))
            self.waited_s += time.perf_counter() - since
            if not window:
                return
            yield window

    def close(self) -> None:
        """Ends the processes that prepare batches."""
        self._prefetched = self._next = None

    def _from(self, place: Place) -> Iterator[TrainingBatch]:
        """Yields the rest of an epoch. Workers prepare the next one during evaluation."""
        if self._prefetched is None or self._next != place:
            places = self._places(place)
            workers = self._recipe.data.workers
            self._prefetched = (
                prefetch(self._maker, places, workers) if workers else self._here(places)
            )
        for batch in range(place.batch, self._batches):
            made = next(self._prefetched)
            self._next = Place(place.epoch, batch + 1)
            yield made
        self._next = Place(place.epoch + 1, 0)

    def _here(self, places: Iterator[Place]) -> Iterator[TrainingBatch]:
        return (self._maker.make(place) for place in places)

    def _places(self, first: Place) -> Iterator[Place]:
        for epoch in range(first.epoch, self._recipe.train.epochs):
            start = first.batch if epoch == first.epoch else 0
            yield from (Place(epoch, batch) for batch in range(start, self._batches))
