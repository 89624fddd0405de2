"""Draws one line over time as an SVG file (`line_chart.svg`). Pure: points in, text out."""

from collections.abc import Sequence

from training.reporting.plot import Mark, Plot
from training.reporting.templates import render

WIDTH = 860


def draw_line(title: str, x_name: str, y_name: str, points: Sequence[tuple[float, float]]) -> str:
    """Draws the chart; its vertical axis begins at 0, so that a small change looks small.

    Args:
        title: heading above the chart.
        x_name: label of the points' first number.
        y_name: label of the second number, which is not negative.
        points: at least two, in ascending order of the first number.
    """
    line = Mark(y_name, tuple(points), radii=(0,) * len(points))
    values = {
        "title": title,
        "x_name": x_name,
        "y_name": y_name,
        "width": WIDTH,
        "css": render("reporting/plot.css", {}),
        "plot": Plot(title, [line], lines=True, from_zero=True, width=WIDTH).svg(),
    }
    return render("figures/line_chart.svg", values, package="bench")
