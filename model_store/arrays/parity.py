"""Measures differences between two sets of outputs. Pure NumPy: used at export and at load.

Shapes: every array is [rows, ...]; row i of one corresponds to row i of the other.

Rules:
- one rounding step of an FP16 output does not count. Two FP32 numbers that differ by 1e-7 may
  round to two adjacent FP16 numbers, which near 0.5 differ by 2.4e-4;
- classes whose values differ by no more than rounding are equally the top class of a row;
- texts (BYTES) are equal or not: no tolerance applies.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array, TensorError, as_bytes
from model_store.arrays.measures import beyond_rounding, figures, max_abs_difference, same_top
from model_store.gate_figures import GateFigure
from model_store.gates import AT_LEAST, Gate
from model_store.tolerance import NO_GATES, Tolerance

MEANS = frozenset({"top1", "iou", "exact"})
"""Measures that are means over the rows; the others are those of the worst row."""

MAX_TEXT = 60
"""Characters of an output's text in a message."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Measured differences between two sets of outputs."""

    max_abs_difference: float
    agreement: float
    max_probability_shift: float = 0.0
    figures: tuple[GateFigure, ...] = ()
    """Figures of the outputs that have gates; the three above are of the other outputs."""
    unlike: str = ""
    """The first output that is missing, has another shape or other texts, and both; empty if none.
    """

    def cosine(self, names: Collection[str]) -> float | None:
        """Returns the lowest cosine of some outputs; None if none was measured."""
        found = [f.value for f in self.figures if f.measure == "cosine" and f.output in names]
        return min(found, default=None)

    @property
    def broken(self) -> GateFigure | None:
        """The first figure beyond its limit, or None."""
        return next((figure for figure in self.figures if not figure.holds), None)

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
        return None if self.broken is None else self.broken.text()


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
    gates: Mapping[str, Gate] = NO_GATES,
) -> Comparison:
    """Compares all outputs of some rows, and names the row with the largest difference.

    Args:
        where: description of the rows.
        expected: outputs by name, each [rows, ...].
        found: outputs to compare with them.
        gates: limits of the outputs that are judged by themselves.
    """
    parity = compare(expected, found, gates)
    if parity.unlike:
        return Comparison(where, parity)
    disagreement = _first_disagreement(expected, found, gates) if parity.agreement < 1 else ""
    gated = list(expected) if parity.broken is None else [parity.broken.output]
    names = [name for name in expected if name not in gates] or gated
    return Comparison(where, parity, _farthest(expected, found, names), disagreement)


def _first_disagreement(
    expected: Mapping[str, Array], found: Mapping[str, Array], gates: Collection[str]
) -> str:
    """Returns the first row with a different top class; empty if there is none."""
    for name, right in expected.items():
        other = found[name]
        if name not in gates and right.size and _has_classes(right):
            agreeing = same_top(right, beyond_rounding(right, other), 1)
            if not agreeing.all():
                return f"row {agreeing.argmin()} of '{name}'"
    return ""


def _farthest(
    expected: Mapping[str, Array], found: Mapping[str, Array], names: Collection[str]
) -> str:
    """Returns the row of the largest difference, or the first not finite; empty if all agree."""
    largest, place = 0.0, ""
    for name in names:
        right, other = expected[name], found[name]
        if right.dtype.kind not in "fiub" or right.size == 0 or right.shape != other.shape:
            continue
        gap = np.abs(right.astype(np.float64) - beyond_rounding(right, other).astype(np.float64))
        rows = np.where(np.isfinite(gap), gap, np.inf).reshape(len(right), -1).max(axis=1)
        if rows.max() > largest:
            largest, place = float(rows.max()), f"row {rows.argmax()} of '{name}'"
    return place


def compare(
    expected: Mapping[str, Array],
    found: Mapping[str, Array],
    gates: Mapping[str, Gate] = NO_GATES,
) -> Parity:
    """Measures all outputs together; the worst output counts.

    A missing output, another shape, a NaN or an infinity counts as an infinite difference.

    Args:
        expected: outputs by name, each [rows, ...].
        found: outputs to compare with them.
        gates: limits of the outputs that are judged by themselves, by `Parity.figures` alone.
    """
    difference, agreement, shift = 0.0, 1.0, 0.0
    measured: list[GateFigure] = []
    for name, right in expected.items():
        other, gate = found.get(name), gates.get(name)
        if other is None or not _have_one_shape(right, other, gate):
            has = "is missing" if other is None else f"has the shape {list(other.shape)}"
            unlike = f"output '{name}' {has}, the checkpoint's has {list(right.shape)}"
            return Parity(float("inf"), 0.0, 1.0, unlike=unlike)
        if gate is not None:
            measured += figures(name, gate, right, other)
            continue
        if right.size == 0:
            continue
        if right.dtype.hasobject:
            if unlike := _other_text(name, right, other):
                return Parity(float("inf"), 0.0, 1.0, unlike=unlike)
            continue
        other = beyond_rounding(right, other)
        difference = max(difference, max_abs_difference(right, other))
        if _has_classes(right):
            agreement = min(agreement, float(same_top(right, other, 1).mean()))
            shift = max(shift, _max_probability_shift(right, other))
    return Parity(difference, agreement, shift, tuple(measured))


def _have_one_shape(expected: Array, found: Array, gate: Gate | None) -> bool:
    """Returns True if two outputs can be compared: boxes may differ in number."""
    if gate is None or list(gate.limits()) != ["iou"] or expected.ndim < 3:
        return found.shape == expected.shape
    return (*found.shape[:-2], found.shape[-1]) == (*expected.shape[:-2], expected.shape[-1])


def _other_text(name: str, expected: Array, found: Array) -> str:
    """Returns a message with the first row whose texts differ; empty if none does."""
    for place in np.ndindex(expected.shape):
        right, other = as_bytes(expected[place]), found[place]
        try:
            if as_bytes(other) == right:
                continue
        except TensorError:  # it is no text
            pass
        return (
            f"output '{name}' has {_short(other)} in row {place[0]}, the checkpoint's has "
            f"{_short(right)}"
        )
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def worst(found: Sequence[Parity]) -> Parity:
    """Returns the worst value of each measure."""
    return _together(found, _worst_figure)


def over_rows(found: Sequence[Parity]) -> Parity:
    """Returns the parity of all rows from those of single rows: a share is the mean of theirs."""
    agreement = sum(parity.agreement for parity in found) / len(found)
    return replace(_together(found, _over_rows), agreement=agreement)


def without_classes(parity: Parity) -> Parity:
    """Returns the parity without the figures about top classes."""
    figures = tuple(figure for figure in parity.figures if figure.measure != "top1")
    return replace(parity, agreement=1.0, figures=figures)


def _together(
    found: Sequence[Parity], pick: Callable[[Sequence[GateFigure]], GateFigure]
) -> Parity:
    by_measure: dict[tuple[str, str], list[GateFigure]] = {}
    for figure in (figure for parity in found for figure in parity.figures):
        by_measure.setdefault((figure.output, figure.measure), []).append(figure)
    return Parity(
        max(parity.max_abs_difference for parity in found),
        min(parity.agreement for parity in found),
        max(parity.max_probability_shift for parity in found),
        tuple(map(pick, by_measure.values())),
        next((parity.unlike for parity in found if parity.unlike), ""),
    )


def _worst_figure(figures: Sequence[GateFigure]) -> GateFigure:
    unmeasured = next((figure for figure in figures if np.isnan(figure.value)), None)
    pick = min if figures[0].measure in AT_LEAST else max
    return unmeasured or pick(figures, key=lambda figure: figure.value)


def _over_rows(figures: Sequence[GateFigure]) -> GateFigure:
    if figures[0].measure not in MEANS:
        return _worst_figure(figures)
    return replace(figures[0], value=float(np.mean([figure.value for figure in figures])))


def _has_classes(expected: Array) -> bool:
    """Returns True for outputs [rows, classes]; others have no top class and always agree."""
    return expected.ndim == 2 and expected.shape[1] > 1 and expected.dtype.kind in "fiu"


def _max_probability_shift(expected: Array, found: Array) -> float:
    shift = np.abs(_softmax(expected) - _softmax(found)).max()
    return float(shift) if np.isfinite(shift) else 1.0


def _softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Returns the softmax over the classes, [rows, classes]; NaN for rows with infinities."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        shares: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares
