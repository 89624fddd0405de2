"""Horizontal bars as SVG, several panels on one sheet (`bar_chart.svg`).

A panel has one scale: linear, or logarithmic if its values lie far apart. Its groups are sorted,
the longest bar first, and each bar shows its value. Pure: figures in, text out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.reporting.templates import render

FAR_APART = 30
"""Ratio of largest to smallest value from which a linear scale would hide the small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The bars of one server."""

    label: str
    highlighted: bool
    bars: Mapping[str, float]
    """Bar lengths by series; positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Bars that share a scale."""

    title: str
    note: str
    """The unit, and the better direction."""
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to shares of the longest bar's room."""

    low: float
    high: float
    logarithmic: bool

    def share(self, value: float) -> float:
        """Returns the position of a value: 0 at the left end, 1 at the highest one."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return value / self.high

    def ticks(self) -> list[float]:
        """Returns round values for grid lines."""
        if self.logarithmic:
            first, last = round(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        magnitude: float = 10.0 ** math.floor(math.log10(self.high))
        step = next(s * magnitude for s in (0.2, 0.5, 1, 2) if self.high / (s * magnitude) <= 5.5)
        return [step * number for number in range(math.floor(self.high / step) + 1)]


def draw(title: str, subtitle: str, colours: Mapping[str, str], panels: Sequence[Panel]) -> str:
    """Draws the sheet: panels two by two under a title and a legend.

    Args:
        title: title of the sheet.
        subtitle: one line under the title.
        colours: colour of each series, in the order of the bars in a group.
        panels: at least one, each with at least one bar.
    """
    drawn = [
        {
            "title": panel.title,
            "note": panel.note,
            "scale": scale_for([value for group in panel.groups for value in group.bars.values()]),
            "groups": sorted(panel.groups, key=lambda group: -max(group.bars.values())),
        }
        for panel in panels
    ]
    values = {
        "title": title,
        "subtitle": subtitle,
        "colours": colours,
        "panels": drawn,
        "short": short,
        "css": render("reporting/plot.css", {}),
    }
    return render("peers/bar_chart.svg", values, package="bench")


def scale_for(values: Sequence[float]) -> Scale:
    """Returns a scale on which the smallest value is still a visible bar."""
    least, most = min(values), max(values)
    if most / least < FAR_APART:
        return Scale(0, most, False)
    return Scale(10.0 ** math.floor(math.log10(least * 0.7)), most, True)


def short(value: float) -> str:
    """Formats a small number with three digits, a large one as its whole part."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
