"""Draws SVG plots with pygal, which is imported when the first one is drawn.

Pure: points in, text out. Colours are CSS classes of `plot.css`, so that a plot follows the page to
light or dark. Titles and legends are HTML of `plot.html`.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from training.reporting.templates import render

WIDTH, HEIGHT = 620, 300
DOT = 4
LOG_TICKS = 5
SMALLEST_VALUE = 1e-9
"""Start of a logarithmic axis; smaller values are drawn there."""
DIGITS = 9
"""Digits of a drawn value: pygal never ends if a step of its axis is lost in rounding."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A series of points, such as one artifact or one state of trials."""

    name: str
    points: tuple[Point, ...]
    published: bool = True
    """True if the points are filled; others are hollow."""
    radii: tuple[float, ...] = ()
    """Radius of each point in pixels; `DOT` if empty. If all are 0, no point is drawn."""
    tips: tuple[str, ...] = ()
    """Tooltip of each point; the name if empty."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Series on two axes, each in its own colour. Points that are not finite are left out."""

    title: str
    marks: Sequence[Mark]
    log_x: bool = False
    log_y: bool = False
    lines: bool = False
    """True to connect the points of each series."""
    joined: Sequence[Point] = ()
    """Points connected by a dashed line."""
    width: int = WIDTH
    """Width in pixels, without the legend."""
    from_zero: bool = False
    """True if a linear vertical axis begins at 0."""

    def html(self) -> str:
        """Renders the plot with its title and legend; empty without finite points."""
        drawn = any(map(_is_finite, (point for mark in self.marks for point in mark.points)))
        return render("reporting/plot.html", {"plot": self, "svg": self.svg() if drawn else ""})

    def svg(self) -> str:
        """Draws axes and points, of which one at least is finite; needs the rules of `plot.css`."""
        from pygal import XY

        # The import hook of pygal's map plug-ins is outdated; Python 3.11 warns at each import.
        sys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__ != "pygal"]
        series = [self._dots(mark) for mark in self.marks]
        joined = [self._place(point) for point in self.joined if _is_finite(point)]
        places = [*joined, *(dot["value"] for dots in series for dot in dots)]
        across, up = _span([x for x, _ in places]), _span([y for _, y in places])
        chart = XY(
            width=self.width, height=HEIGHT, margin=12, explicit_size=True, show_legend=False,
            css=(), js=(), no_prefix=True, disable_xml_declaration=True, min_scale=3, max_scale=8,
            xrange=across, range=(0, up[1]) if self.from_zero else up,
            x_labels=_ticks(*across) if self.log_x else None,
            y_labels=_ticks(*up) if self.log_y else None,
            x_value_formatter="{:.4g}".format, value_formatter="{:.4g}".format,
        )  # fmt: skip
        for mark, dots in zip(self.marks, series, strict=True):
            chart.add("", dots, stroke=self.lines, show_dots=any(mark.radii or (DOT,)))
        chart.add("", joined, show_dots=False)
        chart.add_xml_filter(self._plain)
        return str(chart.render())

    def _dots(self, mark: Mark) -> list[dict[str, Any]]:
        tips = mark.tips or (mark.name,) * len(mark.points)
        radii = mark.radii or (DOT,) * len(mark.points)
        kind = "dot" if mark.published else "dot hollow"
        return [
            {
                "value": self._place(point),
                "tooltip": _printable(tip),
                "node": {"r": f"{radius:g}", "class": kind},
            }
            for point, radius, tip in zip(mark.points, radii, tips, strict=True)
            if _is_finite(point)
        ]

    def _place(self, point: Point) -> Point:
        logs = zip(point, (self.log_x, self.log_y), strict=True)
        x, y = (math.log10(max(value, SMALLEST_VALUE)) if log else value for value, log in logs)
        return float(f"{x:.{DIGITS}g}"), float(f"{y:.{DIGITS}g}")

    def _plain(self, svg: Element) -> Element:
        """Removes pygal's script, style, comments and texts for its script; names the parts."""
        svg[:] = [child for child in svg if child.tag in ("g", "title")]
        svg[0].text = _printable(self.title)
        svg.set("role", "img")
        for group in svg.iter("g"):
            kind = group.get("class", "")
            unused = {"desc", "title"} if "guides" in kind else {"desc"}
            group[:] = [child for child in group if child.tag not in unused]
            if kind == "plot":
                group[-1].set("class", "front")
        return svg


def _span(values: Sequence[float]) -> Point:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.01 or 0.5
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[dict[str, Any]]:
    places = (low + (high - low) * number / (LOG_TICKS - 1) for number in range(LOG_TICKS))
    return [{"value": place, "label": f"{10**place:.3g}"} for place in places]


def _is_finite(point: Point) -> bool:
    return all(map(math.isfinite, point))


def _printable(text: str) -> str:
    """Returns the text without control characters, which XML does not have."""
    return "".join(filter(str.isprintable, text))
