"""Forms batches of rows, and names the row that made a batch fail.

In: rows, each with its arrays of one row. Out: batches in the same order.

Rules:
- rows of one batch have equal shapes, and their number and bytes are limited;
- an error names the index of its row, or of the first and the last row of its batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flambeau.errors import ClientError, InvalidRequestError, ServerError
from flambeau.wire import Array

Arrays = dict[str, Array]
"""Arrays of a request or of an answer, by name."""

BATCH_BYTES = 8 * 1024 * 1024
"""Inputs of a batch beyond its first row; messages are limited too."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows that are sent together."""

    first: int
    """Index of the first row."""
    rows: list[Arrays]
    """Inputs of each row, with a batch axis of one."""

    def inputs(self) -> Arrays:
        """Returns the inputs of all rows."""
        if len(self.rows) == 1:
            return self.rows[0]
        return {name: np.concatenate([row[name] for row in self.rows]) for name in self.rows[0]}

    def split(self, outputs: Arrays) -> list[Arrays]:
        """Returns the outputs of each row, without the batch axis.

        Raises:
            ServerError: an output has another number of rows.
        """
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != len(self.rows):
                raise ServerError(
                    f"output '{name}' of the answer has shape {list(array.shape)}; expected "
                    f"{len(self.rows)} rows"
                )
        return [
            {name: array[index] for name, array in outputs.items()}
            for index in range(len(self.rows))
        ]

    def singles(self) -> list["RowBatch"]:
        """Returns each row as a batch of its own."""
        return [RowBatch(self.first + index, [row]) for index, row in enumerate(self.rows)]

    def may_hold_the_cause(self, failure: ClientError) -> bool:
        """Returns True if the failure may be that of one row among others."""
        about_inputs = isinstance(failure, InvalidRequestError) or failure.grpc_code == "INTERNAL"
        return about_inputs and len(self.rows) > 1

    def naming(self, failure: ClientError) -> ClientError:
        """Adds the rows of this batch to the message of an error, and returns the error."""
        last = self.first + len(self.rows) - 1
        rows = f"row {self.first}" if last == self.first else f"rows {self.first} to {last}"
        failure.args = (f"{rows}: {failure}", *failure.args[1:])
        return failure


@dataclass(slots=True)
class RowBatcher:
    """Collects rows until they are a batch."""

    arrays_of: Callable[[Any], Arrays]
    """Converts a row to arrays with the batch axis; raises `InvalidRequestError`."""
    batch_size: int
    _first: int = 0
    _rows: list[Arrays] = field(default_factory=list)
    _bytes: int = 0

    def add(self, row: Any) -> Iterator[RowBatch]:
        """Adds a row, and yields the batches that are complete.

        Raises:
            InvalidRequestError: the row does not fit the model; the message has its index.
        """
        index = self._first + len(self._rows)
        try:
            arrays = self.arrays_of(row)
            count = len(next(iter(arrays.values())))
            if count != 1:
                raise InvalidRequestError(f"it holds {count} rows; give one row at a time")
        except InvalidRequestError as error:
            raise InvalidRequestError(f"row {index}: {error}") from error
        size = sum(map(_size_bytes, arrays.values()))
        if self._rows and (
            self._bytes + size > BATCH_BYTES or _form(arrays) != _form(self._rows[0])
        ):
            yield from self.rest()
        self._rows.append(arrays)
        self._bytes += size
        if len(self._rows) == self.batch_size:
            yield from self.rest()

    def rest(self) -> Iterator[RowBatch]:
        """Yields the rows that are left as a batch, if there are any."""
        if self._rows:
            batch = RowBatch(self._first, self._rows)
            self._first += len(self._rows)
            self._rows, self._bytes = [], 0
            yield batch


def _form(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], Any]]:
    return {name: (array.shape, array.dtype.kind) for name, array in arrays.items()}


def _size_bytes(array: Array) -> int:
    return sum(map(len, array.flat)) if array.dtype.kind == "O" else array.nbytes
