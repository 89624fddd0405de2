"""Measures how far an output lies from the reference's. Pure NumPy: used at export and at load.

In: two arrays of one shape, [rows, ...]; only boxes may differ in number. Out: one figure for each
limit of a gate.

Rules: a value that is not finite, on either side, makes every figure the worst one; two empty
arrays are equal; a measure that an array does not allow is NaN, which keeps no limit.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from model_store.gate_figures import GateFigure
from model_store.gates import AT_LEAST, Gate

Numbers = npt.NDArray[np.float64]

NUMBERS = "fiub"
"""NumPy's kinds of numbers, booleans included."""
TIE_STEPS = 4
"""Tolerance in FP32 rounding steps at a row's largest value: sums in two orders differ by these."""
MAX_MATCHED_BOXES = 512
"""More boxes of a row are not matched, but compared by their place: matching takes their square."""
MAX_TEXT = 4096
"""Longer texts that differ count as wholly different: the distance takes the square of it."""


def figures(name: str, gate: Gate, expected: Array, found: Array) -> list[GateFigure]:
    """Measures one output by every limit of its gate.

    The largest difference of numbers is always among the figures; its limit is infinite if the gate
    has none.

    Args:
        name: name of the output.
        gate: limits.
        expected: the reference's output.
        found: the artifact's, of the same shape; with `iou`, boxes may differ in number.
    """
    limits = gate.limits()
    is_finite = _are_finite(expected) and _are_finite(found)
    if expected.dtype.kind in NUMBERS and expected.shape == found.shape:
        limits.setdefault("absolute", float("inf"))
    measured = []
    for measure, limit in limits.items():
        value = float("nan")
        if _fits(measure, gate, expected, found):
            worst = 0.0 if measure in AT_LEAST else float("inf")
            value = _MEASURES[measure](gate, expected, found) if is_finite else worst
        measured.append(GateFigure(name, measure, value, limit))
    return measured


def top1(expected: Array, found: Array, axis: int = -1) -> float:
    """Returns the share of positions with the same, or a tied, largest element along an axis."""
    if expected.size == 0:
        return 1.0
    return float(same_top(expected, beyond_rounding(expected, found), axis).mean())


def same_top(expected: Array, found: Array, axis: int) -> npt.NDArray[np.bool_]:
    """Marks the positions with the same or a tied largest element along an axis."""
    top, chosen = expected.argmax(axis=axis), found.argmax(axis=axis)
    right = expected.astype(np.float64)
    steps = TIE_STEPS * np.finfo(np.float32).eps if expected.dtype.kind == "f" else 0.0
    best, taken = (
        np.take_along_axis(right, np.expand_dims(place, axis), axis).squeeze(axis)
        for place in (top, chosen)
    )
    with np.errstate(invalid="ignore"):  # between infinities
        tied = best - taken <= steps * np.abs(right).max(axis=axis)
    agreeing: npt.NDArray[np.bool_] = tied | (top == chosen)
    return agreeing


def least_cosine(expected: Array, found: Array) -> float:
    """Returns the lowest cosine of any two vectors along the last axis, times their lengths' ratio.

    The ratio is the shorter length by the longer one. Two zero vectors count as equal.
    """
    if expected.size == 0:
        return 1.0
    right, other = expected.astype(np.float64), found.astype(np.float64)
    # Scaled to at most 1, so that no square overflows or vanishes.
    scale = np.maximum(np.abs(right).max(axis=-1), np.abs(other).max(axis=-1))[..., np.newaxis]
    scale = np.where(scale > 0, scale, 1.0)
    right, other = right / scale, other / scale
    products = (right * other).sum(axis=-1)
    longer = np.maximum((right * right).sum(axis=-1), (other * other).sum(axis=-1))
    likeness = np.where(longer > 0, products / np.where(longer > 0, longer, 1.0), 1.0)
    return float(likeness.min())


def mean_iou(expected: Array, found: Array) -> float:
    """Returns the mean intersection over union (Jaccard, 1912), from 0 to 1.

    Arrays [..., 4] of numbers are boxes of two corners (x1, y1, x2, y2). Boxes [rows, N, 4] are
    matched row by row: the pair with the largest overlap first, as in the evaluation of PASCAL VOC
    (Everingham et al., 2010); a box without a partner counts 0. Boxes [rows, 4] are one a row.
    Boxes without an area are 1 if equal and 0 otherwise.

    Other arrays are masks [rows, ...]: true, above 0 (logits), or above one half if all values are
    from 0 to 1; two empty masks are 1. The mean of the rows counts.
    """
    if expected.size == 0 and found.size == 0:
        return 1.0
    if not _are_boxes(expected):
        return _mean_mask_iou(expected, found)
    right, other = expected.astype(np.float64), found.astype(np.float64)
    if right.ndim == 2:
        return float(_box_ious(right, other).mean())
    rows = [_matched_iou(a, b) for a, b in zip(_sets(right), _sets(other), strict=True)]
    return float(np.mean(rows))


def edit_distance(expected: Array, found: Array) -> float:
    """Returns the largest edit distance of any two texts, by the characters of the reference's.

    The distance is the smallest number of inserted, removed and replaced characters (Levenshtein,
    1966). An empty reference counts as one character.
    """
    texts = zip(expected.ravel().tolist(), found.ravel().tolist(), strict=True)
    return max((_distance(_text(a), _text(b)) / max(len(_text(a)), 1) for a, b in texts), default=0)


def max_abs_difference(expected: Array, found: Array) -> float:
    """Returns the largest difference of two elements; infinite for unequal texts."""
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind not in NUMBERS:
        return 0.0 if bool((expected == found).all()) else float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    return float(gap.max()) if np.isfinite(gap).all() else float("inf")


def relative_difference(expected: Array, found: Array, absolute: float = 0.0) -> float:
    """Returns the largest difference beyond an absolute one, as a share of the reference's element.

    The result is at most `relative` exactly if `numpy.allclose(found, expected, relative,
    absolute)` holds for finite numbers.
    """
    if expected.size == 0:
        return 0.0
    right, other = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(right - other)
    if not np.isfinite(gap).all():
        return float("inf")
    beyond, size = np.maximum(gap - absolute, 0.0), np.abs(right)
    shares = np.where(beyond > 0, np.inf, 0.0)
    with np.errstate(over="ignore"):
        np.divide(beyond, size, out=shares, where=size > 0)
    return float(shares.max())


def equal_share(expected: Array, found: Array) -> float:
    """Returns the share of equal elements."""
    if expected.size == 0:
        return 1.0
    if expected.dtype.hasobject:  # bytes, or text in UTF-8
        pairs = zip(expected.ravel().tolist(), found.ravel().tolist(), strict=True)
        return sum(_text(a) == _text(b) for a, b in pairs) / expected.size
    return float(np.asarray(expected == found, np.bool_).mean())


def beyond_rounding(expected: Array, found: Array) -> Array:
    """Moves the elements of `found` towards those of `expected` by one FP16 rounding step.

    The step is from the larger magnitude of the two to its neighbour towards zero. Arrays of other
    types are returned unchanged.

    Args:
        expected: array of any shape.
        found: array of the same shape.
    """
    if expected.dtype != np.float16 or found.dtype != np.float16:
        return found
    larger = np.maximum(np.abs(expected), np.abs(found))
    with np.errstate(invalid="ignore"):  # infinities become NaN, as intended
        step = (larger - np.nextafter(larger, np.float16(0))).astype(np.float64)
        right = expected.astype(np.float64)
        gap = found.astype(np.float64) - right
        moved: Array = right + np.sign(gap) * np.maximum(np.abs(gap) - step, 0)
    return moved


_MEASURES: dict[str, Callable[[Gate, Array, Array], float]] = {
    "top1": lambda gate, a, b: top1(a, b, gate.axis),
    "cosine": lambda _, a, b: least_cosine(a, b),
    "iou": lambda _, a, b: mean_iou(a, b),
    "edit_distance": lambda _, a, b: edit_distance(a, b),
    "absolute": lambda _, a, b: max_abs_difference(a, beyond_rounding(a, b)),
    "relative": lambda gate, a, b: relative_difference(
        a, beyond_rounding(a, b), gate.absolute or 0.0
    ),
    "exact": lambda _, a, b: equal_share(a, b),
}


def _fits(measure: str, gate: Gate, expected: Array, found: Array) -> bool:
    """Returns True if the arrays allow a measure."""
    if expected.dtype.kind not in NUMBERS or found.dtype.kind not in NUMBERS:
        return measure in ("edit_distance", "exact")
    if measure == "edit_distance":
        return False
    if measure == "top1":
        axis = gate.axis if gate.axis >= 0 else gate.axis + expected.ndim
        return 1 <= axis < expected.ndim
    return measure != "cosine" or expected.ndim >= 2


def _are_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _are_boxes(array: Array) -> bool:
    return array.ndim >= 2 and array.shape[-1] == 4 and array.dtype.kind != "b"


def _sets(boxes: Numbers) -> Numbers:
    """Returns boxes [..., N, 4] as sets [S, N, 4]."""
    return boxes.reshape(-1, *boxes.shape[-2:]) if boxes.size else boxes.reshape(len(boxes), 0, 4)


def _box_ious(one: Numbers, other: Numbers) -> Numbers:
    """Returns the intersection over union of boxes that are paired by broadcasting, [..., 4]."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (
            np.maximum(one[..., :2], other[..., :2]),
            np.minimum(one[..., 2:], other[..., 2:]),
        )
        shared = np.maximum(high - low, 0.0).prod(axis=-1)
        union = _areas(one) + _areas(other) - shared
        ious = shared / np.where(union > 0, union, 1.0)
    equal = (one == other).all(axis=-1)
    found: Numbers = np.where(union > 0, np.nan_to_num(ious, nan=0.0), equal.astype(np.float64))
    return found


def _areas(boxes: Numbers) -> Numbers:
    found: Numbers = np.maximum(boxes[..., 2:] - boxes[..., :2], 0.0).prod(axis=-1)
    return found


def _matched_iou(one: Numbers, other: Numbers) -> float:
    """Returns the mean overlap of two sets of boxes, [N, 4] and [M, 4]; lone boxes count 0."""
    most = max(len(one), len(other))
    if most == 0:
        return 1.0
    if most > MAX_MATCHED_BOXES:
        if len(one) != len(other):
            return 0.0
        return float(_box_ious(one, other).mean())
    ious = _box_ious(one[:, np.newaxis], other[np.newaxis])
    first, second = np.indices(ious.shape).reshape(2, -1)
    # Equal overlaps are taken in an order that does not depend on which set comes first.
    order = np.lexsort((first + second, np.abs(first - second), -ious.ravel()))
    total, left, right = 0.0, set(range(len(one))), set(range(len(other)))
    for place in order:
        a, b = int(first[place]), int(second[place])
        if a in left and b in right:
            total += float(ious[a, b])
            left.remove(a)
            right.remove(b)
            if not left or not right:
                break
    return total / most


def _mean_mask_iou(expected: Array, found: Array) -> float:
    line = 0.0
    if expected.dtype.kind == "f" and expected.min() >= 0 and expected.max() <= 1:
        line = 0.5
    one, other = (np.greater(a, line).reshape(len(a), -1) for a in (expected, found))
    both, either = (one & other).sum(axis=1), (one | other).sum(axis=1)
    return float(np.where(either > 0, both / np.maximum(either, 1), 1.0).mean())


def _text(value: object) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def _distance(one: str, other: str) -> int:
    """Returns the edit distance of two texts."""
    if one == other:
        return 0
    if max(len(one), len(other)) > MAX_TEXT:
        return max(len(one), len(other))
    letters = np.array([ord(letter) for letter in other], np.int64)
    places = np.arange(len(other) + 1)
    row = places.copy()
    for letter in one:
        # Removed, or replaced; then inserted, from left to right.
        near = row + 1
        near[1:] = np.minimum(near[1:], row[:-1] + (letters != ord(letter)))
        row = np.minimum.accumulate(near - places) + places
    return int(row[-1])
