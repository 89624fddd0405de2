"""Data sets that are read row by row: those with `__getitem__`, and streams.

In: the data's own object. Out: batches of its rows, and a split of some of them.

A data set of rows has `__len__`, and `__getitem__(i)` that returns (inputs by name, label). It may
have `labels` and `lengths`, [rows], for samplers that need them in advance, and `sha256`, text that
identifies the data. A stream has `__iter__`, which yields such pairs, or functions without
arguments that return one: then only the process that needs the row calls it. It may have `__len__`,
`set_epoch(epoch)`, called before each `__iter__`, and `sha256`. Each epoch iterates over it from
its beginning, and must get the same rows in the same order at every iteration.

Rule: random numbers of `__getitem__` are seeded for each batch, and the generators of the process
are restored after it.
"""

import contextlib
import itertools
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from flambeau.protocol.tensors import Array
from training.errors import DataError
from training.loading.joined_rows import Row, RowJoiner
from training.loading.row_order import Places
from training.recipe.parts.loss_parts import LABELS
from training.recipe.recipe import Recipe
from training.recipe.user_code import failure_in_words

SAMPLE_ROWS = 1024
"""Training rows that are read before training: for the signature, statistics, class weights and
calibration."""


class LazyRows(Protocol):
    """Rows that are not in memory."""

    rows: int
    """Rows of one epoch."""
    random_access: bool
    """True if any row can be read alone."""
    labels: Array | None
    """Labels of all rows, [rows], if the data set has them; classes as in
    `training.datasets.Split`."""
    lengths: Places | None
    """Lengths of all rows, [rows], if the data set has them."""
    sha256: str
    """Identifies the data, with its number of rows."""

    def take(self, rows: Places, epoch: int, seed: int) -> tuple[dict[str, Array], Array]:
        """Returns inputs and labels of some rows.

        Args:
            rows: their places, [N]; ascending for a stream.
            epoch: from 0.
            seed: the seed of random numbers in reading.

        Raises:
            DataError: a row, named in the message, cannot be read, or does not match the others.
        """

    def read(self, most: int | None) -> tuple[dict[str, Array], Array]:
        """Returns inputs and labels of evenly spread rows, or of all; padded to the largest bucket.

        Args:
            most: number of rows; None for all.

        Raises:
            DataError: as `take`, or there is no row.
        """

    def places(self, number: int) -> Places:
        """Returns the places of the rows that `read` returns, if it returns that many, [number]."""


def lazy_rows(found: object, where: str, recipe: Recipe) -> LazyRows | None:
    """Wraps a recipe's data for one split, if it is to be read row by row; None otherwise.

    Args:
        found: the data.
        where: its name in messages.
        recipe: the run.

    Raises:
        DataError: it has no rows, attributes that contradict its length, or too few labels.
    """
    if isinstance(found, tuple | str | bytes | Mapping | np.ndarray):
        return None
    several = sorted({term.labels for term in recipe.loss.terms} - {LABELS})
    if several:
        raise DataError(
            f"{where} is read row by row, and a row has one label, but loss.sum names {several} "
            "too; give arrays"
        )
    if hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        return RowsByPlace(found, where, recipe)
    return RowStream(found, where, recipe) if isinstance(found, Iterable) else None


class RowsByPlace:
    """A data set with `__len__` and `__getitem__`.

    Args:
        data: the data set.
        where: its name in messages.
        recipe: the run.

    Raises:
        DataError: it is empty, its first row is invalid, or `labels` or `lengths` has another
            number of rows.
    """

    random_access = True

    def __init__(self, data: Any, where: str, recipe: Recipe) -> None:
        self._data, self._where, self._joiner = data, where, RowJoiner(recipe, where)
        self.rows = len(data)
        if self.rows == 0:
            raise DataError(f"{where} has no rows; give at least one")
        self.labels = self._known("labels")
        if self.labels is not None and recipe.loss.judged_task == "classes":
            whole = self.labels.dtype.kind in "iu"  # other labels are checked with the rows
            self.labels = self._joiner.classes(self.labels) if whole else self.labels
        lengths = self._known("lengths")
        self.lengths = None if lengths is None else lengths.astype(np.int64)
        self.sha256 = f"{getattr(data, 'sha256', '')} {self.rows}"
        with own_randomness(recipe.seed, 0, 0):
            self._like = self._row(0)

    def take(self, rows: Places, epoch: int, seed: int) -> tuple[dict[str, Array], Array]:
        """See `LazyRows.take`."""
        with own_randomness(seed, epoch, int(rows[0]) if len(rows) else 0):
            return self._joined(rows)

    def read(self, most: int | None) -> tuple[dict[str, Array], Array]:
        """See `LazyRows.read`."""
        rows = min(self.rows, most or self.rows)
        with own_randomness(0, 0, 0):
            return self._joined(self.places(rows), full=True)

    def places(self, number: int) -> Places:
        """See `LazyRows.places`."""
        return np.arange(number) * self.rows // number

    def _joined(self, rows: Places, full: bool = False) -> tuple[dict[str, Array], Array]:
        places = rows.tolist()
        found = [self._row(row) for row in places]
        return self._joiner.join(found, places, self._like, full)

    def _row(self, row: int) -> Row:
        return self._joiner.read(lambda: self._data[row], row)

    def _known(self, name: str) -> Array | None:
        told = getattr(self._data, name, None)
        if told is None:
            return None
        found = np.asarray(told)
        if len(found) != self.rows:
            raise DataError(
                f"{self._where} has {self.rows} rows and {len(found)} {name}; give one for each"
            )
        return found


class RowStream:
    """A data set with `__iter__`.

    Args:
        data: the data set.
        where: its name in messages.
        recipe: the run.

    Raises:
        DataError: it is empty, or its first row is invalid.
    """

    random_access = False
    labels: Array | None = None
    lengths: Places | None = None

    def __init__(self, data: Any, where: str, recipe: Recipe) -> None:
        self._data, self._where, self._joiner = data, where, RowJoiner(recipe, where)
        self._walk: Iterator[Any] = iter(())
        self._epoch, self._place = -1, 0
        first = list(itertools.islice(self._open(0), 1))
        if not first:
            raise DataError(f"{where} yields no rows; give at least one")
        self._like = self._row(first[0], 0)
        self.rows = self._counted(recipe)
        self.sha256 = f"{getattr(data, 'sha256', '')} {self.rows}"

    def take(self, rows: Places, epoch: int, seed: int) -> tuple[dict[str, Array], Array]:
        """See `LazyRows.take`; skips the rows in between."""
        if len(rows) and (epoch != self._epoch or rows[0] < self._place):
            self._walk, self._epoch, self._place = self._open(epoch), epoch, 0
        found = []
        for row in rows.tolist():
            item = next(itertools.islice(self._walk, row - self._place, None), None)
            if item is None:
                self._epoch = -1
                raise DataError(
                    f"{self._where} ended before row {row}, and an epoch has {self.rows}; lower "
                    "train.steps_per_epoch"
                )
            self._place = row + 1
            found.append(self._row(item, row))
        return self._joiner.join(found, rows.tolist(), self._like)

    def read(self, most: int | None) -> tuple[dict[str, Array], Array]:
        """See `LazyRows.read`; the first rows, as a stream has no others yet."""
        items = itertools.islice(self._open(0), most)
        found = [self._row(item, row) for row, item in enumerate(items)]
        return self._joiner.join(found, range(len(found)), self._like, full=True)

    def places(self, number: int) -> Places:
        """See `LazyRows.places`."""
        return np.arange(number)

    def _open(self, epoch: int) -> Iterator[Any]:
        set_epoch = getattr(self._data, "set_epoch", None)
        try:
            if set_epoch is not None:
                set_epoch(epoch)
            yield from self._data
        except Exception as error:  # the user's data set may raise any exception
            told = failure_in_words(error)
            raise DataError(f"{self._where} cannot be read: {told}") from error

    def _row(self, item: Any, row: int) -> Row:
        return self._joiner.read(item if callable(item) else lambda: item, row)

    def _counted(self, recipe: Recipe) -> int:
        """Returns the rows of an epoch: from the recipe, from the stream, or by iterating once."""
        if recipe.train.steps_per_epoch is not None:
            batches = recipe.train.steps_per_epoch * recipe.optim.accumulate
            return batches * recipe.data.batch_size
        if hasattr(self._data, "__len__"):
            return len(self._data)
        return sum(1 for _ in self._open(0))


@contextlib.contextmanager
def own_randomness(*seeds: int) -> Iterator[None]:
    """Seeds the generators of the process, and restores them after the block.

    Torch's generator is not touched if torch was not imported.
    """
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    if torch is not None:
        torch.random.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if torch is not None:
            torch.set_rng_state(before[2])
