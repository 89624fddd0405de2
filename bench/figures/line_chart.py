"""Draws one line over time as SVG. Pure: points in, text out."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 860, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 52, 40
INK, FAINT, GRID, LINE = "#1f2933", "#616e7c", "#e4e7eb", "#3a6ea5"
GRID_LINES = 4


def draw_line(title: str, x_name: str, y_name: str, points: Sequence[tuple[float, float]]) -> str:
    """Draws the chart; its vertical axis begins at 0, so that a small change looks small.

    Args:
        title: heading above the chart.
        x_name: label of the points' first number.
        y_name: label of the second number, which is not negative.
        points: at least two, in ascending order of the first number.
    """
    high = max(y for _, y in points) * 1.1 or 1.0
    first, last = points[0][0], points[-1][0]
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    scaled = [
        (LEFT + across * (x - first) / ((last - first) or 1.0), TOP + up * (1 - y / high))
        for x, y in points
    ]
    parts = [_text(LEFT, 30, title, "font-size='16' font-weight='bold'")]
    for number in range(GRID_LINES + 1):
        share = number / GRID_LINES
        y, x = TOP + up * (1 - share), LEFT + across * share
        parts.append(f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='{GRID}'/>")
        grey = f"font-size='11' fill='{FAINT}'"
        parts.append(_text(LEFT - 8, y + 4, f"{high * share:.0f}", f"{grey} text-anchor='end'"))
        value = f"{first + (last - first) * share:.0f}"
        parts.append(_text(x, HEIGHT - 20, value, f"{grey} text-anchor='middle'"))
    parts.append(_text(8, TOP - 10, y_name, f"font-size='11' fill='{FAINT}'"))
    parts.append(
        _text(WIDTH - RIGHT, HEIGHT - 5, x_name, f"font-size='11' fill='{FAINT}' text-anchor='end'")
    )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in scaled)
    parts.append(f"<polyline points='{path}' fill='none' stroke='{LINE}' stroke-width='1.5'/>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif" fill="{INK}">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, style: str) -> str:
    return f"<text x='{x:g}' y='{y:g}' {style}>{escape(text)}</text>"
