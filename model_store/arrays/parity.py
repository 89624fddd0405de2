"""Measures differences between two sets of outputs. Pure NumPy: used at export and at load.

Shapes: every array is [rows, ...]; row i of one corresponds to row i of the other.

Rules:
- one rounding step of an FP16 output does not count. Two FP32 numbers that differ by 1e-7 may
  round to two adjacent FP16 numbers, which near 0.5 differ by 2.4e-4;
- classes whose values differ by no more than rounding are equally the top class of a row.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from model_store.tolerance import Tolerance

TIE_STEPS = 4
"""Tolerance in FP32 rounding steps at a row's largest value: sums in two orders differ by these."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Measured differences between two sets of outputs."""

    max_abs_difference: float
    agreement: float
    max_probability_shift: float = 0.0
    cosine: float = 1.0
    """The lowest value over all embedding vectors of: the cosine of the angle between both vectors,
    times the ratio of the shorter one's length to the longer one's. 1 for equal vectors, 0 if a
    value is not finite."""
    unlike: str = ""
    """The first output that is missing or has another shape, and both shapes; empty if none."""

    def failure(self, tolerance: Tolerance) -> str | None:
        """Describes the first limit that is exceeded; None if all hold."""
        if self.unlike:
            return self.unlike
        if not self.max_abs_difference <= tolerance.max_abs_difference:  # catches NaN too
            return (
                f"largest difference {self.max_abs_difference:.3g} is above "
                f"{tolerance.max_abs_difference:.3g}"
            )
        if self.agreement < tolerance.min_agreement:
            return f"agreement {self.agreement:.4f} is below {tolerance.min_agreement:.4f}"
        if self.max_probability_shift > tolerance.max_probability_shift:
            return (
                f"largest probability shift {self.max_probability_shift:.3g} is above "
                f"{tolerance.max_probability_shift:.3g}"
            )
        if tolerance.min_cosine is not None and not self.cosine >= tolerance.min_cosine:
            return f"cosine {self.cosine:.5f} is below {tolerance.min_cosine:.5f}"
        return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of outputs with those of the checkpoint."""

    where: str
    """The rows that were compared, and the batch size."""
    parity: Parity
    place: str = ""
    """Location of the largest difference, if known: `row 12 of 'logits'`."""
    disagreement: str = ""
    """Location of the first row with a different top class, in the same form; empty if none."""

    def failure(self, tolerance: Tolerance) -> str | None:
        """Describes the exceeded limit and its location; None if all hold."""
        broken = self.parity.failure(tolerance)
        place = f", most in {self.place}" if self.place else ""
        parity = self.parity
        are_near = parity.max_abs_difference <= tolerance.max_abs_difference
        if self.disagreement and are_near and parity.agreement < tolerance.min_agreement:
            place = f", first in {self.disagreement}"
        return f"{self.where}: {broken}{place}" if broken else None


def first_failure(found: Sequence[Comparison], tolerance: Tolerance) -> str | None:
    """Describes the first comparison outside the tolerance, or returns None."""
    return next((text for one in found if (text := one.failure(tolerance))), None)


def compare_rows(
    where: str,
    expected: Mapping[str, Array],
    found: Mapping[str, Array],
    embeddings: Collection[str] = (),
) -> Comparison:
    """Compares all outputs of some rows, and names the row with the largest difference.

    Args:
        where: description of the rows.
        expected: outputs by name, each [rows, ...].
        found: outputs to compare with them.
        embeddings: outputs that are compared by `Parity.cosine`.
    """
    parity = compare(expected, found, embeddings)
    if parity.unlike:
        return Comparison(where, parity)
    disagreement = _first_disagreement(expected, found, embeddings) if parity.agreement < 1 else ""
    return Comparison(where, parity, _farthest(expected, found, embeddings), disagreement)


def _first_disagreement(
    expected: Mapping[str, Array], found: Mapping[str, Array], embeddings: Collection[str]
) -> str:
    """Returns the first row with a different top class; empty if there is none."""
    for name, right in expected.items():
        other = found[name]
        if name not in embeddings and right.size and _has_classes(right):
            agreeing = _agreeing(right, beyond_rounding(right, other))
            if not agreeing.all():
                return f"row {agreeing.argmin()} of '{name}'"
    return ""


def _farthest(
    expected: Mapping[str, Array], found: Mapping[str, Array], embeddings: Collection[str]
) -> str:
    """Returns the row of the largest difference, or the first not finite; empty if all agree.

    Embeddings count only if there are no other outputs. All outputs have the expected shapes.
    """
    names = [name for name in expected if name not in embeddings] or list(expected)
    largest, place = 0.0, ""
    for name in names:
        right, other = expected[name], found[name]
        if right.dtype.kind not in "fiub" or right.size == 0:
            continue
        gap = np.abs(right.astype(np.float64) - beyond_rounding(right, other).astype(np.float64))
        rows = np.where(np.isfinite(gap), gap, np.inf).reshape(len(right), -1).max(axis=1)
        if rows.max() > largest:
            largest, place = float(rows.max()), f"row {rows.argmax()} of '{name}'"
    return place


def compare(
    expected: Mapping[str, Array], found: Mapping[str, Array], embeddings: Collection[str] = ()
) -> Parity:
    """Measures all outputs together; the worst output counts.

    A missing output, another shape, a NaN or an infinity counts as an infinite difference.

    Args:
        expected: outputs by name, each [rows, ...].
        found: outputs to compare with them.
        embeddings: outputs that are compared by `Parity.cosine` alone, [rows, ..., D].
    """
    difference, agreement, shift, cosine = 0.0, 1.0, 0.0, 1.0
    for name, right in expected.items():
        other = found.get(name)
        if other is None or other.shape != right.shape:
            has = "is missing" if other is None else f"has the shape {list(other.shape)}"
            unlike = f"output '{name}' {has}, the checkpoint's has {list(right.shape)}"
            return Parity(float("inf"), 0.0, 1.0, unlike=unlike)
        if right.size == 0:
            continue
        if name in embeddings:
            cosine = min(cosine, _least_cosine(right, other))
            continue
        other = beyond_rounding(right, other)
        difference = max(difference, _max_abs_difference(right, other))
        if _has_classes(right):
            agreement = min(agreement, float(_agreeing(right, other).mean()))
            shift = max(shift, _max_probability_shift(right, other))
    return Parity(difference, agreement, shift, cosine)


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


def worst(found: Sequence[Parity]) -> Parity:
    """Returns the worst value of each measure."""
    return Parity(
        max(parity.max_abs_difference for parity in found),
        min(parity.agreement for parity in found),
        max(parity.max_probability_shift for parity in found),
        min(parity.cosine for parity in found),
        next((parity.unlike for parity in found if parity.unlike), ""),
    )


def _max_abs_difference(expected: Array, found: Array) -> float:
    if expected.dtype.kind not in "fiub":
        return 0.0 if bool((expected == found).all()) else float("inf")
    gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    return float(gap.max()) if np.isfinite(gap).all() else float("inf")


def _least_cosine(expected: Array, found: Array) -> float:
    """Returns `Parity.cosine` of vectors along the last axis; two zero vectors count as equal."""
    right, other = expected.astype(np.float64), found.astype(np.float64)
    if not (np.isfinite(right).all() and np.isfinite(other).all()):
        return 0.0
    products = (right * other).sum(axis=-1)
    longer = np.maximum((right * right).sum(axis=-1), (other * other).sum(axis=-1))
    likeness = np.where(longer > 0, products / np.where(longer > 0, longer, 1.0), 1.0)
    return float(likeness.min())


def _has_classes(expected: Array) -> bool:
    """Returns True for outputs [rows, classes]; others have no top class and always agree."""
    return expected.ndim == 2 and expected.shape[1] > 1 and expected.dtype.kind in "fiu"


def _agreeing(expected: Array, found: Array) -> npt.NDArray[np.bool_]:
    """Marks the rows of outputs [rows, classes] with the same or a tied top class, [rows]."""
    top, chosen = expected.argmax(axis=1), found.argmax(axis=1)
    right, rows = expected.astype(np.float64), np.arange(len(expected))
    steps = TIE_STEPS * np.finfo(np.float32).eps if expected.dtype.kind == "f" else 0.0
    with np.errstate(invalid="ignore"):  # between infinities
        gap = right[rows, top] - right[rows, chosen]
        tied = gap <= steps * np.abs(right).max(axis=1)
    agreeing: npt.NDArray[np.bool_] = tied | (top == chosen)
    return agreeing


def _max_probability_shift(expected: Array, found: Array) -> float:
    shift = np.abs(_softmax(expected) - _softmax(found)).max()
    return float(shift) if np.isfinite(shift) else 1.0


def _softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Returns the softmax over the classes, [rows, classes]; NaN for rows with infinities."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        shares: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares
