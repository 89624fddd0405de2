"""Draws SVG plots, and defines the style of their pages; nothing is fetched.

Pure: points in, text out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 620, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 45
LEGEND = 140
DOT = 4
COLOURS = (
    "#1f2933", "#c05621", "#3a6ea5", "#2f855a", "#97266d", "#b7791f", "#2c7a7b", "#9b2c2c",
    "#553c9a", "#718096", "#38a169", "#dd6b20", "#3182ce",
)  # fmt: skip
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:1300px;margin:2em auto;"
    "padding:0 1em}table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:right;"
    "border-bottom:1px solid #e4e7eb;vertical-align:top}td:first-child,th:first-child,"
    "td:last-child,th:last-child{text-align:left}svg{margin:1em 1em 0 0}"
)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A series of points, such as one artifact or one state of trials."""

    name: str
    points: tuple[Point, ...]
    published: bool = True
    """True if the points are filled; others are hollow."""
    radii: tuple[float, ...] = ()
    """Radius of each point in pixels; `DOT` if empty."""
    tips: tuple[str, ...] = ()
    """Tooltip of each point; the name if empty."""


def table_cells(tag: str, texts: Sequence[str]) -> str:
    """Returns the cells of one table row; `tag` is `td` or `th`."""
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def draw_plot(
    title: str,
    marks: Sequence[Mark],
    *,
    log_x: bool = False,
    log_y: bool = False,
    lines: bool = False,
    joined: Sequence[Point] = (),
    width: int = WIDTH,
) -> str:
    """Draws one plot as SVG, with a legend beside it; empty without points.

    Args:
        title: title above the plot.
        marks: series, each in its own colour.
        log_x: True for a logarithmic horizontal axis.
        log_y: True for a logarithmic vertical axis.
        lines: True to connect the points of each series.
        joined: points connected by a dashed line.
        width: width in pixels, without the legend.
    """
    every = [point for mark in marks for point in mark.points]
    if not every:
        return ""
    every += joined
    across = _Axis([x for x, _ in every], LEFT, width - RIGHT, log_x)
    up = _Axis([y for _, y in every], HEIGHT - BOTTOM, TOP, log_y)
    parts = [_text(LEFT, 22, title, "font-weight='bold'")]
    for value in across.ticks():
        parts.append(_text(across.at(value), HEIGHT - 22, f"{value:.3g}", "text-anchor='middle'"))
    for value in up.ticks():
        y = up.at(value)
        parts.append(f"<path d='M{LEFT} {y:.1f}H{width - RIGHT}' stroke='#e4e7eb'/>")
        parts.append(_text(LEFT - 8, y + 4, f"{value:.3g}", "text-anchor='end'"))
    if len(joined) > 1:
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in joined)
        parts.append(
            f"<polyline class='front' points='{path}' fill='none' stroke='#9aa5b1' "
            "stroke-dasharray='5 4'/>"
        )
    for number, mark in enumerate(marks):
        colour = COLOURS[number % len(COLOURS)]
        places = [(across.at(x), up.at(y)) for x, y in mark.points]
        if lines:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}'/>")
        dot = f"stroke='{colour}' fill='{colour if mark.published else 'white'}'"
        tips = mark.tips or (mark.name,) * len(places)
        radii = mark.radii or (DOT,) * len(places)
        parts += [
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:g}' {dot}>"
            f"<title>{escape(tip)}</title></circle>"
            for (x, y), radius, tip in zip(places, radii, tips, strict=True)
        ]
        parts.append(_text(width + 14, TOP + 18 * number, mark.name, ""))
        parts.append(f"<circle cx='{width + 4}' cy='{TOP + 18 * number - 4}' r='{DOT}' {dot}/>")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width + LEGEND}' height='{HEIGHT}' "
        f"font-size='12' fill='#1f2933' font-family='system-ui,sans-serif'>{''.join(parts)}</svg>"
    )


class _Axis:
    """Maps values to pixels between two edges, on a linear or logarithmic scale."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self._scale = _log if log else float
        self._log = log
        low, high = min(map(self._scale, values)), max(map(self._scale, values))
        margin = (high - low) * 0.08 or 0.5
        self._low, self._high = low - margin, high + margin
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Returns the pixel position of a value."""
        share = (self._scale(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Returns values along the axis: five powers, or two to six round numbers."""
        if self._log:
            return [10 ** (self._low + (self._high - self._low) * n / 4) for n in range(5)]
        power = 10 ** math.floor(math.log10((self._high - self._low) / 5))
        step = next(n * power for n in (1, 2, 5, 10) if (self._high - self._low) / (n * power) <= 6)
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [round(place * step, 12) for place in range(first, last + 1)]


def _log(value: float) -> float:
    return math.log10(max(value, 1e-9))


def _text(x: float, y: float, text: str, style: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"
