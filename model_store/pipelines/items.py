"""Selects the rows or items that a step runs for, and puts its outputs back in their places. NumPy.

In: tensors [rows, ...] or [rows, items, ...]. Out: batches of the selected ones, and tensors of the
full shape again, 0 or empty where nothing was selected.

Rule: a copy is made in slices of `SLICE_BYTES`, as the generators here are resumed, so that an
event loop can do other work in between; whatever is selected completely is not copied at all.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array

SLICE_BYTES = 2**18
"""Bytes copied in one turn of an event loop: 0.1 ms at 2.5 GB/s, the rate into new memory."""
MAX_ITEMS = 1024
"""Rows that a step runs for one request: more items are refused."""
MAX_PLACES = 2**20
"""Items of all rows, selected or not: a tensor [rows, items, 0] has any number of them, and the
outputs of a step have a place for each."""
MAX_COPIED_BYTES = 2**27
"""Bytes copied for one input of a step: images that are repeated for each of many items."""

T = TypeVar("T")
Sliced = Generator[None, None, T]
"""Work that yields between its slices."""
Positions = npt.NDArray[np.int64]


class TooManyItemsError(ValueError):
    """A request has more items than `MAX_ITEMS`, or too many bytes of them."""


class ItemsError(ValueError):
    """Tensors of one request do not fit each other: their rows or items differ in number."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows or items of one request that a step runs for."""

    rows: int
    items: int | None
    """Items of each row; None if the step runs for rows."""
    positions: Positions | None
    """Positions of the selected ones, ascending: of rows, or of items counted over all rows; None
    for all."""

    @property
    def count(self) -> int:
        """Number of rows of the step's batch."""
        if self.positions is not None:
            return len(self.positions)
        return self.rows * (1 if self.items is None else self.items)

    def chosen_rows(self) -> npt.NDArray[np.bool_]:
        """Returns the rows that are selected, [rows] BOOL, of a selection of rows."""
        chosen = np.zeros(self.rows, np.bool_)
        chosen[slice(None) if self.positions is None else self.positions] = True
        return chosen


def select(rows: int, for_each: Array | None, where: Array | None) -> Selection:
    """Selects rows, or the items of a tensor.

    Args:
        rows: rows of the request.
        for_each: tensor [rows, items, ...] whose items are selected; None to select rows.
        where: BOOL [rows], BOOL [rows, items] or the numbers of items [rows]; None for all.

    Raises:
        ItemsError: the tensors differ in rows or items.
        TooManyItemsError: more are selected than `MAX_ITEMS`, or there are more than `MAX_PLACES`.
    """
    items = None if for_each is None else for_each.shape[1]
    if for_each is not None and len(for_each) != rows:
        raise ItemsError(f"for_each has {len(for_each)} rows, and the request has {rows}")
    if rows * (items or 0) > MAX_PLACES:
        raise TooManyItemsError(
            f"the request has {rows} rows of {items:,} items, selected or not, and {MAX_PLACES:,} "
            "are allowed; send fewer rows, or have the model give fewer items"
        )
    positions: Positions | None = None
    if where is not None:
        is_counts = items is not None and where.dtype != np.bool_
        wanted = (rows,) if items is None or is_counts else (rows, items)
        if where.shape != wanted:
            raise ItemsError(f"where has shape {list(where.shape)}, and {list(wanted)} is needed")
        if is_counts:
            positions = _first_items(rows, items or 0, where)
        else:
            _check_count(int(np.count_nonzero(where)))  # positions have 8 bytes each
            positions = np.flatnonzero(where)
        if len(positions) == rows * (1 if items is None else items):
            positions = None
    found = Selection(rows, items, positions)
    _check_count(found.count)
    return found


def _first_items(rows: int, items: int, counts: Array) -> Positions:
    """Returns the positions of the first items of each row.

    No mask is made: a tensor [rows, items, 0] has no bytes, and any number of items.
    """
    kept = np.clip(counts.astype(np.int64), 0, items)
    _check_count(sum(kept.tolist()))
    before = np.cumsum(kept) - kept
    found: Positions = np.arange(kept.sum()) + np.repeat(np.arange(rows) * items - before, kept)
    return found


def _check_count(count: int) -> None:
    if count > MAX_ITEMS:
        raise TooManyItemsError(
            f"the request has {count:,} items, and a step runs for {MAX_ITEMS:,} of one request "
            "at most; send fewer rows, or have the model find fewer items"
        )


def taken(array: Array, selection: Selection, by_item: bool) -> Sliced[Array]:
    """Returns the selected rows or items of a tensor, [count, ...].

    Args:
        array: tensor [rows, ...], or [rows, items, ...] if it is given item by item.
        selection: what is selected.
        by_item: False to repeat each row for its items.

    Raises:
        ItemsError: its rows or items are not those of the selection.
        TooManyItemsError: more than `MAX_COPIED_BYTES` would be copied.
    """
    rows, items, positions = selection.rows, selection.items, selection.positions
    if len(array) != rows or (by_item and array.shape[1] != items):
        raise ItemsError(
            f"an input has shape {list(array.shape)}, and the step runs for {rows} rows"
            f"{f' of {items} items' if by_item else ''}"
        )
    if by_item:
        array = array.reshape(rows * (items or 0), *array.shape[2:])
    elif items is not None:
        flat = np.arange(rows * items) if positions is None else positions
        positions = flat // items if items else flat
    if positions is None:
        return array
    out = _empty((len(positions), *array.shape[1:]), array.dtype)
    for part in _slices(len(positions), out):
        if part.start:
            yield
        out[part] = array[positions[part]]
    return out


def put_back(parts: Sequence[Array], selection: Selection) -> Sliced[Array]:
    """Joins the batches of a step's output, and puts each row in the place of its row or item.

    Args:
        parts: the output of each batch in turn, [batch rows, ...], for the selected rows in order.
        selection: what was selected.

    Returns:
        The output [rows, ...] or [rows, items, ...].

    Raises:
        ItemsError: the batches differ in shape.
        TooManyItemsError: more than `MAX_COPIED_BYTES` would be copied.
    """
    first = parts[0]
    places = selection.rows * (1 if selection.items is None else selection.items)
    shape = (places, *first.shape[1:])
    if len(parts) == 1 and selection.positions is None:
        return first.reshape(full_shape(selection, shape))
    out = _empty(shape, first.dtype)
    begin = 0
    for batch in parts:
        if batch.shape[1:] != first.shape[1:]:
            raise ItemsError(
                f"batches of one request have outputs of the shapes {list(first.shape)} and "
                f"{list(batch.shape)}, which cannot be joined"
            )
        for part in _slices(len(batch), batch):
            if begin or part.start:
                yield
            here = slice(begin + part.start, begin + part.stop)
            out[here if selection.positions is None else selection.positions[here]] = batch[part]
        begin += len(batch)
    return out.reshape(full_shape(selection, shape))


def nothing(shape: Sequence[int], datatype: np.dtype[np.generic], selection: Selection) -> Array:
    """Returns the output of a step that runs for no row or item of a request.

    Args:
        shape: shape of the model's output, batch first; sizes that vary are 0 here.
        datatype: NumPy's type of it.
        selection: the empty selection.
    """
    places = selection.rows * (1 if selection.items is None else selection.items)
    full = (places, *(max(size, 0) for size in shape[1:]))
    return _empty(full, datatype).reshape(full_shape(selection, full))


def joined(arrays: Sequence[Array], chosen: Sequence[npt.NDArray[np.bool_]]) -> Sliced[Array]:
    """Returns for each row the one of the first tensor that was computed for it; 0 where none was.

    Args:
        arrays: tensors [rows, ...] of one datatype.
        chosen: the rows that each was computed for, [rows].

    Raises:
        ItemsError: tensors that have rows differ in shape.
        TooManyItemsError: more than `MAX_COPIED_BYTES` would be copied.
    """
    there = [(a, rows) for a, rows in zip(arrays, chosen, strict=True) if rows.any()]
    if not there:
        return arrays[0]
    out = _empty(there[0][0].shape, arrays[0].dtype)
    for array, rows in reversed(there):
        if array.shape != out.shape:
            raise ItemsError(
                f"the joined tensors have the shapes {list(out.shape)} and {list(array.shape)}"
            )
        for part in _slices(len(out), out):
            if part.start:
                yield
            out[part][rows[part]] = array[part][rows[part]]
    return out


def full_shape(selection: Selection, flat: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape [rows, items, ...] of a flat one [rows * items, ...]."""
    if selection.items is None:
        return tuple(flat)
    return (selection.rows, selection.items, *flat[1:])


def _slices(rows: int, array: Array) -> list[slice]:
    row_bytes = max(array.nbytes // max(len(array), 1), 1)
    at_once = max(SLICE_BYTES // row_bytes, 1)
    return [slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once)]


def _empty(shape: Sequence[int], datatype: np.dtype[np.generic]) -> Array:
    """Returns an array of zeros, or of empty elements of BYTES.

    Raises:
        TooManyItemsError: it would be too large.
    """
    size = math.prod(shape) * datatype.itemsize
    if size > MAX_COPIED_BYTES:
        raise TooManyItemsError(
            f"an input or output of {size:,} bytes would be copied, and the limit for one request "
            f"is {MAX_COPIED_BYTES:,}; send fewer rows, or have the model find fewer items"
        )
    if datatype == np.object_:
        return np.full(shape, b"", np.object_)
    return np.zeros(shape, datatype)
