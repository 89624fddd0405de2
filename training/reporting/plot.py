"""Draws SVG plots with pygal, which is imported when the first one is drawn.

Pure: points in, text out. Colours are CSS classes of `plot.css`, so that a plot follows the page to
light or dark. Titles and legends are HTML of `plot.html`.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from training.reporting.templates import render

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 620, 300
DOT = 4
SMALLEST_LOGARITHM = 1e-9
LOG_TICKS = 5

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


def draw_plot(
    title: str,
    marks: Sequence[Mark],
    *,
    log_x: bool = False,
    log_y: bool = False,
    lines: bool = False,
    joined: Sequence[Point] = (),
    width: int = WIDTH,
) -> "Markup":
    """Draws one plot with its title and legend; empty without points.

    Args:
        title: title above the plot.
        marks: series, each in its own colour.
        log_x: True for a logarithmic horizontal axis.
        log_y: True for a logarithmic vertical axis.
        lines: True to connect the points of each series.
        joined: points connected by a dashed line.
        width: width in pixels, without the legend.
    """
    svg = ""
    if any(mark.points for mark in marks):
        svg = plot_svg(
            title, marks, log_x=log_x, log_y=log_y, lines=lines, joined=joined, width=width
        )
    return render("reporting/plot.html", {"title": title, "marks": marks, "svg": svg})


def plot_svg(
    title: str,
    marks: Sequence[Mark],
    *,
    log_x: bool = False,
    log_y: bool = False,
    lines: bool = False,
    joined: Sequence[Point] = (),
    width: int = WIDTH,
    from_zero: bool = False,
) -> str:
    """Draws the axes and points of `draw_plot` alone, as SVG that needs the rules of `plot.css`.

    Args:
        title: text for readers who do not see the plot.
        marks: series with one point at least.
        log_x: see `draw_plot`.
        log_y: see `draw_plot`.
        lines: see `draw_plot`.
        joined: see `draw_plot`.
        width: see `draw_plot`.
        from_zero: True if the vertical axis includes 0.
    """
    from pygal import XY

    _remove_import_hook()
    across, up = _log if log_x else float, _log if log_y else float
    every = [*joined, *(point for mark in marks for point in mark.points)]
    chart = XY(
        width=width, height=HEIGHT, margin=12, explicit_size=True, show_legend=False, css=(), js=(),
        no_prefix=True, disable_xml_declaration=True, min_scale=3, max_scale=8,
        include_x_axis=from_zero,
        x_labels=_ticks([across(x) for x, _ in every]) if log_x else None,
        y_labels=_ticks([up(y) for _, y in every]) if log_y else None,
        x_value_formatter="{:.4g}".format, value_formatter="{:.4g}".format,
    )  # fmt: skip
    for mark in marks:
        dotted = any(mark.radii or (DOT,))
        chart.add("", _dots(mark, across, up), stroke=lines, show_dots=dotted)
    chart.add("", [(across(x), up(y)) for x, y in joined], show_dots=False)
    chart.add_xml_filter(partial(_plain, title))
    return str(chart.render())


def _remove_import_hook() -> None:
    """Removes the import hook of pygal's map plug-ins; Python 3.11 warns that it is outdated."""
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__ != "pygal"]


def _dots(
    mark: Mark, across: Callable[[float], float], up: Callable[[float], float]
) -> list[dict[str, Any]]:
    tips = mark.tips or (mark.name,) * len(mark.points)
    radii = mark.radii or (DOT,) * len(mark.points)
    kind = "dot" if mark.published else "dot hollow"
    return [
        {
            "value": (across(x), up(y)),
            "tooltip": _printable(tip),
            "node": {"r": f"{radius:g}", "class": kind},
        }
        for (x, y), radius, tip in zip(mark.points, radii, tips, strict=True)
    ]


def _plain(title: str, svg: Element) -> Element:
    """Removes pygal's script, style, comments and texts for its script; marks the dashed line."""
    for child in [child for child in svg if child.tag not in ("g", "title")]:
        svg.remove(child)
    svg[0].text = _printable(title)
    svg.set("role", "img")
    for group in list(svg.iter("g")):
        kind = group.get("class", "")
        unused = {"desc", "title"} if "guides" in kind else {"desc"}
        for child in [child for child in group if child.tag in unused]:
            group.remove(child)
        if kind == "plot" and (series := group.findall("g[@class]")):
            series[-1].set("class", "front")
    return svg


def _ticks(logarithms: Sequence[float]) -> list[dict[str, Any]]:
    low, high = min(logarithms), max(logarithms)
    margin = (high - low) * 0.08 or 0.5
    step = (high - low + 2 * margin) / (LOG_TICKS - 1)
    places = [low - margin + step * number for number in range(LOG_TICKS)]
    return [{"value": place, "label": f"{10**place:.3g}"} for place in places]


def _printable(text: str) -> str:
    """Returns the text without control characters, which XML does not have."""
    return "".join(filter(str.isprintable, text))


def _log(value: float) -> float:
    return math.log10(max(value, SMALLEST_LOGARITHM))
