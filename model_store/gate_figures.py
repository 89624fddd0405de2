"""Figures of gates: measured values beside their limits, and their form in documents. Pure."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from model_store.gates import AT_LEAST

GateValues = dict[str, dict[str, float | None]]
"""Measured values by output and measure; None for those that are not finite."""


@dataclass(frozen=True, slots=True)
class GateFigure:
    """One measured value beside its limit."""

    output: str
    measure: str
    value: float
    """NaN if the measure is impossible for such an output."""
    limit: float

    @property
    def holds(self) -> bool:
        """True if the limit is kept."""
        at_least = self.measure in AT_LEAST
        return self.value >= self.limit if at_least else self.value <= self.limit

    def text(self) -> str:
        """Returns the value and the limit in words."""
        if math.isnan(self.value):
            return f"{self.measure} cannot be measured for output '{self.output}'"
        word = "below" if self.measure in AT_LEAST else "above"
        return f"{self.measure} of '{self.output}' {self.value:.5g} is {word} {self.limit:.5g}"


def gate_values(figures: Iterable[GateFigure], names: Collection[str]) -> GateValues:
    """Returns the figures of some outputs for a document, which has no infinity.

    Args:
        figures: measured figures.
        names: the outputs to include.
    """
    found: GateValues = {}
    for figure in figures:
        if figure.output in names:
            value = figure.value if math.isfinite(figure.value) else None
            found.setdefault(figure.output, {})[figure.measure] = value
    return found


def worst_values(found: Iterable[GateValues]) -> GateValues:
    """Returns the worst value of each measure of each output; None if one is not finite."""
    worst: GateValues = {}
    for values in found:
        for output, measured in values.items():
            known = worst.setdefault(output, {})
            for name, value in measured.items():
                known[name] = _worse(name, known.get(name, value), value)
    return worst


def _worse(measure: str, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return None
    return min(one, other) if measure in AT_LEAST else max(one, other)


def agreement_of(values: GateValues) -> float:
    """Returns the smallest share of rows that agree, of all outputs; 1 if no gate tells."""
    shares = ("top1", "exact", "iou", "function")
    found = [m[name] for m in values.values() for name in shares if name in m]
    return min((0.0 if share is None else share for share in found), default=1.0)


def shares_text(values: GateValues) -> str:
    """Formats the worst value of each measure that is no difference: `top1 0.9922, iou 0.9500`."""
    worst = worst_values({"": measured} for measured in values.values()).get("", {})
    return ", ".join(
        f"{name} {value:.4f}"
        for name, value in worst.items()
        if value is not None and name not in ("absolute", "relative")
    )
