"""Figures beside their targets, and tables of text. Pure.

A missed target is reported and nothing more: a timing on a shared machine proves no fault, so no
benchmark fails because of it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

MISSING = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One figure and its target."""

    what: str
    value: float
    """NaN if the figure could not be measured; NaN reaches no target."""
    bound: Literal["at least", "at most"]
    target: float
    unit: str = ""

    @property
    def reached(self) -> bool:
        """True if the figure is on the right side of its target."""
        if self.bound == "at least":
            return self.value >= self.target
        return self.value <= self.target

    @property
    def figures(self) -> tuple[str, str]:
        """Returns the value and the target, each with the unit."""
        value, target = (f"{short(v)} {self.unit}".rstrip() for v in (self.value, self.target))
        return value, target

    def line(self) -> str:
        """Formats one line of output."""
        said = "reached    " if self.reached else "not reached"
        value, target = self.figures
        return f"{said}  {self.what}: {value} (target: {self.bound} {target})"

    def as_record(self) -> dict[str, Any]:
        """Returns the record for the results file; NaN, which JSON lacks, becomes null."""
        record = asdict(self) | {"reached": self.reached}
        return record | ({"value": None} if self.value != self.value else {})


def at_most(what: str, value: float, target: float, unit: str = "") -> Verdict:
    """Returns a verdict on a figure that should be small."""
    return Verdict(what=what, value=value, bound="at most", target=target, unit=unit)


def at_least(what: str, value: float, target: float, unit: str = "") -> Verdict:
    """Returns a verdict on a figure that should be large."""
    return Verdict(what=what, value=value, bound="at least", target=target, unit=unit)


def percentile(values: npt.ArrayLike, percent: float) -> float:
    """Returns the interpolated percentile of some values; NaN if there are none."""
    array = np.asarray(values, np.float64)
    return float(np.percentile(array, percent)) if array.size else MISSING


def ratio(part: float, whole: float) -> float:
    """Returns a quotient; NaN if the divisor is 0."""
    return part / whole if whole else MISSING


def short(value: float) -> str:
    """Formats a small number with three digits, a large one as its whole part."""
    if value != value:
        return "-"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def markdown_table(verdicts: Sequence[Verdict]) -> str:
    """Renders every figure beside its target; figures that miss it are bold."""
    rows = []
    for verdict in verdicts:
        value, target = verdict.figures
        sign = "≥" if verdict.bound == "at least" else "≤"
        bold = "" if verdict.reached else "**"
        rows.append(f"| {verdict.what} | {sign} {target} | {bold}{value}{bold} |")
    return "\n".join(["| what | target | measured |", "|---|---|---|", *rows])


def table(head: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    """Renders aligned columns: text to the left, numbers to the right.

    Args:
        head: names of the columns.
        rows: cells, one for each column.
    """
    cells = [[c if isinstance(c, str) else short(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = [bool(rows) and not isinstance(rows[0][i], str) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(head), *cells]
    )
