"""Compares the answers of two versions to the same inputs. Pure; arrays of any size.

By the task:
- *classes*: rows whose largest element is at another place differ;
- *scores*: numbers between 0 and 1 disagree by their difference;
- other numbers: a row disagrees by d / (d + 2 s), where d is the distance of both answers and s
  the spread of the live version's golden answers (`model_store/rollouts/golden_spreads.py`): 0 if
  they are equal, 1 % if they are 2 % of the spread apart, a half if they are twice the spread
  apart. Where the spread is not known, it disagrees by d, divided by the sum of the lengths of
  both: 1 if they have opposite signs or one is 0;
- whole numbers, booleans and BYTES: elements that are not equal differ.

An answer's disagreement is the mean over its rows, and the largest of its outputs; if outputs of
classes or scores are known, these alone count. Another name or shape, or a NaN in one alone, is 1.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array, bf16_numbers
from model_store.rollouts.guards import OutputGuard
from services.queueing.records import InferReply
from services.rollouts.evidence.evidence import MAX_PLACE, score_step

CHECKED_ELEMENTS = 4096
"""Evenly spread elements of an answer that are checked on the event loop: some 10 µs."""
FEW_ELEMENTS = 64
"""Elements that are looked at one by one: NumPy's call takes longer."""
SAME_BYTES = 4096
"""Bytes of answers that are compared as bytes first: versions may well give the same."""
PIECE_ELEMENTS = 2**17
"""Elements of an output that are compared at a time: 1 MiB in double precision."""
_Floats = npt.NDArray[np.float64]


class Task(NamedTuple):
    """The meaning of a model's outputs, as far as it is known."""

    kind: Literal["classes", "scores", "numbers"] = "numbers"
    values: int = 0
    """Number of classes."""
    named: frozenset[str] = frozenset()
    """Outputs that have names of classes."""
    spreads: Mapping[str, float] = MappingProxyType({})
    """Spreads of outputs of numbers, as far as they are known."""


class Judged(NamedTuple):
    """The comparison of two answers."""

    disagreement: float
    """Between 0 and 1."""
    difference: float
    """Largest difference of two finite numbers; 0 where there are none."""
    nan: bool
    """True if the candidate alone has a NaN or an infinity."""


def task_of(guard: OutputGuard | None, signature: Signature, spreads: Mapping[str, float]) -> Task:
    """Returns the task by the guard of a rollout, or else by the names of classes."""
    named = frozenset(signature.labels)
    if guard is None:
        return Task("classes" if named else "numbers", 0, named, spreads)
    return Task(guard.kind, guard.values, named, spreads)


def bf16_of(reply: InferReply) -> Collection[str]:
    """Returns the names of the outputs of BF16, whose arrays have bit patterns."""
    types = reply.datatypes
    if "BF16" not in types.values():
        return ()
    return [name for name, datatype in types.items() if datatype == "BF16"]


def output_of(outputs: Mapping[str, Array], task: Task, bf16: Collection[str] = ()) -> int | None:
    """Returns the class of the first row, or its score in steps; None if no output has one.

    It takes a few microseconds: a row of classes has at most `MAX_PLACE` elements.

    Args:
        outputs: the answer.
        task: what its outputs mean.
        bf16: names of those that have bit patterns.
    """
    if task.kind == "numbers":
        return None
    for name, array in outputs.items():
        if not array.size or not _is_judged(name, array, task, name in bf16):
            continue
        if task.kind == "scores":
            first = _numbers(array[:1], name in bf16)  # such an output has one element a row
            return score_step(float(first.item(0)))
        if array.shape[-1] <= (task.values or MAX_PLACE):
            return _largest(array[(0,) * (array.ndim - 1)], name in bf16)
    return None


def _largest(row: Array, is_bf16: bool) -> int:
    """Returns the place of the largest element, or of the first NaN."""
    if row.size <= FEW_ELEMENTS and row.dtype.kind == "f":
        numbers = row.tolist()
        if math.isfinite(sum(numbers)):
            return int(numbers.index(max(numbers)))
    return int(_numbers(row, is_bf16).argmax())


def has_nan(outputs: Mapping[str, Array], bf16: Collection[str] = ()) -> bool:
    """Returns True if an element is no finite number; of large outputs, some are looked at.

    Args:
        outputs: the answer.
        bf16: names of the outputs that have bit patterns.
    """
    for name, array in outputs.items():
        if array.dtype.kind not in "fc" and name not in bf16:
            continue
        few = array.size <= FEW_ELEMENTS and array.dtype.kind == "f"
        if few and math.isfinite(sum(array.ravel().tolist())):
            continue
        if not np.isfinite(_numbers(_some_of(array), name in bf16)).all():
            return True
    return False


def _some_of(array: Array) -> Array:
    """Returns evenly spread elements of a large array, without a copy of the others."""
    if array.size <= CHECKED_ELEMENTS:
        return array
    step = -(-array.size // CHECKED_ELEMENTS)
    if array.flags.c_contiguous:
        return array.reshape(-1)[::step]
    return array[np.unravel_index(np.arange(0, array.size, step), array.shape)]


def compared(
    live: Mapping[str, Array],
    candidate: Mapping[str, Array],
    task: Task,
    bf16: Collection[str] = (),
    candidate_bf16: Collection[str] = (),
) -> Judged:
    """Compares two answers, in pieces: it takes some MiB of memory for answers of any size.

    Args:
        live: outputs of the live version.
        candidate: those of the candidate.
        task: what they mean.
        bf16: names of the live version's outputs that have bit patterns.
        candidate_bf16: the same for the candidate's.
    """
    judged = list(live)
    if task.kind != "numbers":
        named = (x for x in live if _is_judged(x, live[x], task, x in bf16))
        judged = list(named) or judged
    disagreement, difference, nan = 0.0, 0.0, False
    for name, array in live.items():
        other = candidate.get(name)
        if other is None or other.shape != array.shape or _differs_in_kind(other, array):
            found = Judged(1.0, 0.0, False)
        elif not array.size or _is_same(array, other, name in bf16, name in candidate_bf16):
            found = Judged(0.0, 0.0, False)
        elif array.dtype.kind not in "fc" and name not in bf16:
            found = _compared_exactly(array, other, name in candidate_bf16)
        else:
            kind = task.kind if _is_judged(name, array, task, name in bf16) else "numbers"
            is_bf16, spread = (name in bf16, name in candidate_bf16), task.spreads.get(name)
            few = _compared_few(array, other, kind, spread)
            found = few or _compared(array, other, kind, spread, is_bf16)
        if name in judged:
            disagreement = max(disagreement, found.disagreement)
        difference = max(difference, found.difference)
        nan = nan or found.nan
    if candidate.keys() - live.keys():
        disagreement = 1.0
    return Judged(1.0 if nan else disagreement, difference, nan)


def _differs_in_kind(one: Array, other: Array) -> bool:
    return one.dtype.hasobject != other.dtype.hasobject


def _is_same(one: Array, other: Array, *is_bf16: bool) -> bool:
    """Returns True if small arrays have the same bytes, with one meaning."""
    return (
        one.nbytes <= SAME_BYTES
        and one.dtype == other.dtype
        and not one.dtype.hasobject
        and is_bf16[0] == is_bf16[1]
        and one.tobytes() == other.tobytes()
    )


def _is_judged(name: str, array: Array, task: Task, is_bf16: bool) -> bool:
    """Returns True if an output has the classes or the scores of the task."""
    if task.kind == "numbers" or array.ndim == 0:
        return False
    if array.dtype.kind not in "fc" and not is_bf16:
        return False
    if task.kind == "scores":
        return math.prod(array.shape[1:]) == 1
    return name in task.named or array.shape[-1] == task.values > 1


def _compared_exactly(live: Array, candidate: Array, is_bf16: bool) -> Judged:
    """Compares whole numbers, booleans or BYTES."""
    differ, difference = 0, 0.0
    for _, one, other in _pieces(_rows(live), _rows(candidate)):
        other = _numbers(other, is_bf16)
        differ += int(np.count_nonzero(np.not_equal(one, other).astype(bool)))
        if one.dtype.kind in "biu" and other.dtype.kind in "biuf":
            difference = max(difference, float(np.abs(_floats(one) - _floats(other)).max()))
    return Judged(differ / live.size, difference, False)


@np.errstate(over="ignore", invalid="ignore")  # a distance that overflows is a disagreement of 1
def _compared(
    live: Array,
    candidate: Array,
    kind: Literal["classes", "scores", "numbers"],
    spread: float | None,
    bf16: tuple[bool, bool],
) -> Judged:
    """Compares floating-point numbers."""
    is_classes = kind == "classes"
    rows = [x.reshape(-1, x.shape[-1]) if is_classes else _rows(x) for x in (live, candidate)]
    count, columns = rows[0].shape
    apart, difference, nan = 0.0, 0.0, False
    distance = _Distance(spread)
    for ends, *both in _pieces(rows[0], rows[1], whole_rows=is_classes):
        raw = [_floats(_numbers(x, is_bf16)) for x, is_bf16 in zip(both, bf16, strict=True)]
        one, other, odd, is_worse = _finite(*raw)
        nan = nan or is_worse
        difference = max(difference, float(np.abs(one - other).max()))
        if is_classes:
            places = [np.nan_to_num(x).argmax(-1) for x in raw]
            apart += float(np.count_nonzero(places[0] != places[1]))
        elif kind == "scores":
            apart += float(np.clip(np.abs(one - other), 0, 1).sum())
        else:
            distance.add(one, other, odd)
            if ends:
                apart += distance.end()
    return Judged(apart / (count * columns if kind == "scores" else count), difference, nan)


def _finite(one: _Floats, other: _Floats) -> tuple[_Floats, _Floats, npt.NDArray[np.bool_], bool]:
    """Returns both with 0 where they cannot be compared, where one is odd, and if `other` is."""
    both_odd = (np.isnan(one) & np.isnan(other)) | (np.isinf(one) & (one == other))
    one, other = np.where(both_odd, 0, one), np.where(both_odd, 0, other)
    odd = ~(np.isfinite(one) & np.isfinite(other))
    nan = bool((~np.isfinite(other) & np.isfinite(one)).any())
    return np.where(odd, 0, one), np.where(odd, 0, other), odd, nan


def _compared_few(live: Array, candidate: Array, kind: str, spread: float | None) -> Judged | None:
    """Compares few finite numbers, one by one; returns None for others."""
    if live.size > FEW_ELEMENTS or live.dtype.kind != "f" or candidate.dtype.kind != "f":
        return None
    columns = live.shape[-1] if kind == "classes" else _rows(live).shape[1]
    rows = [x.reshape(-1, columns).tolist() for x in (live, candidate)]
    if not all(math.isfinite(sum(map(sum, x))) for x in rows):
        return None
    apart, difference = 0.0, 0.0
    for one, other in zip(*rows, strict=True):
        distances = [abs(a - b) for a, b in zip(one, other, strict=True)]
        difference = max(difference, *distances)
        if kind == "classes":
            apart += one.index(max(one)) != other.index(max(other))
        elif kind == "scores":
            apart += sum(min(x, 1.0) for x in distances)
        elif distance := math.hypot(*distances):
            scale = 2 * spread + distance if spread else math.hypot(*one) + math.hypot(*other)
            apart += distance / scale if scale < math.inf else 1.0
    return Judged(apart / (live.size if kind == "scores" else len(rows[0])), difference, False)


class _Distance:
    """Sum over rows of their disagreement by distance. Rows may come in parts.

    Args:
        spread: that of the output; None to divide by the lengths of both answers.
    """

    def __init__(self, spread: float | None) -> None:
        self._spread = spread
        self._squares: _Floats | None = None
        """Squared lengths of both, squared distance, and oddness of each row: [4, rows]."""

    def add(self, one: _Floats, other: _Floats, odd: npt.NDArray[np.bool_]) -> None:
        """Adds some columns of some rows; the next ones are of the same rows, until `end`."""
        parts = (one**2, other**2, (one - other) ** 2, odd)
        found = np.stack([part.sum(1, dtype=np.float64) for part in parts])
        self._squares = found if self._squares is None else self._squares + found

    def end(self) -> float:
        """Returns the sum over these rows."""
        assert self._squares is not None
        live, candidate, apart, odd = self._squares
        self._squares = None
        distance = np.sqrt(apart)
        scale = np.sqrt(live) + np.sqrt(candidate)
        if self._spread is not None:
            scale = 2 * self._spread + distance
        shares = np.divide(distance, scale, out=np.zeros_like(distance), where=distance > 0)
        shares[(odd > 0) | (np.isinf(scale) & (distance > 0))] = 1.0
        return float(shares.sum())


def _rows(array: Array) -> Array:
    """Returns an array as rows of numbers: [rows, columns]."""
    return array.reshape((array.shape[0], -1) if array.ndim > 1 else (-1, 1))


def _pieces(
    live: Array, candidate: Array, *, whole_rows: bool = False
) -> Iterator[tuple[bool, Array, Array]]:
    """Yields both in pieces of rows, or of columns of one row, and if the rows end there."""
    count, columns = live.shape
    width = columns if whole_rows else min(columns, PIECE_ELEMENTS)
    height = max(1, PIECE_ELEMENTS // width)
    for row in range(0, count, height):
        for column in range(0, columns, width):
            piece = slice(row, row + height), slice(column, column + width)
            yield column + width >= columns, live[piece], candidate[piece]


def _numbers(array: Array, is_bf16: bool) -> Array:
    return bf16_numbers(array) if is_bf16 else array


def _floats(array: Array) -> _Floats:
    return array.astype(np.float64)
