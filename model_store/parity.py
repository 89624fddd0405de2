"""How far one set of outputs lies from another. Pure NumPy: used at export and again at load.

Shapes: every array is [rows, ...]; row i of one belongs to row i of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model_store.strict import StrictModel
from model_store.tensors import Array


class Tolerance(StrictModel):
    """How far an artifact may lie from the checkpoint and still be served.

    Widen `max_abs_difference` for quantized kinds, whose outputs move while the answer does not;
    then `min_agreement` is the limit that means something.
    """

    max_abs_difference: float
    """Largest absolute difference of any output element, in the output's own unit."""
    min_agreement: float
    """Share of rows, 0 to 1, whose largest output is in the same place."""


@dataclass(frozen=True, slots=True)
class Parity:
    """What was measured between two sets of outputs."""

    max_abs_difference: float
    agreement: float

    def failure(self, tolerance: Tolerance) -> str | None:
        """Says which limit is broken, or None when both hold."""
        if not self.max_abs_difference <= tolerance.max_abs_difference:  # catches NaN too
            return (
                f"largest difference {self.max_abs_difference:.3g} is above "
                f"{tolerance.max_abs_difference:.3g}"
            )
        if self.agreement < tolerance.min_agreement:
            return f"agreement {self.agreement:.4f} is below {tolerance.min_agreement:.4f}"
        return None


def compare(expected: Mapping[str, Array], found: Mapping[str, Array]) -> Parity:
    """Measures all outputs together; the worst output counts.

    A missing output, another shape, or a NaN or infinity where a number was expected counts as
    infinitely far.
    """
    difference, agreement = 0.0, 1.0
    for name, right in expected.items():
        other = found.get(name)
        if other is None or other.shape != right.shape:
            return Parity(float("inf"), 0.0)
        if right.size == 0:
            continue
        difference = max(difference, _max_abs_difference(right, other))
        agreement = min(agreement, _top_class_agreement(right, other))
    return Parity(difference, agreement)


def _max_abs_difference(expected: Array, found: Array) -> float:
    if expected.dtype.kind not in "fiub":
        return 0.0 if bool((expected == found).all()) else float("inf")
    gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    return float(gap.max()) if np.isfinite(gap).all() else float("inf")


def _top_class_agreement(expected: Array, found: Array) -> float:
    """Only outputs of shape [rows, classes] have a top class; others agree by definition."""
    if expected.ndim != 2 or expected.shape[1] < 2 or expected.dtype.kind not in "fiu":
        return 1.0
    return float((expected.argmax(axis=1) == found.argmax(axis=1)).mean())
