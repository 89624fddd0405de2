"""A dashboard as SVG, drawn from what Prometheus answered: the layout is that of Grafana.

Pure: answers in, text out.
"""

import math
import re
from collections.abc import Sequence
from html import escape

from flambeau.monitoring.panels import Dashboard, GridPosition, Panel, places
from tests.dashboards.answers import Answer, Answers
from tests.fixtures.prometheus_process import Series

COLUMN, LINE = 50, 34
"""Pixels of Grafana's grid."""
MARGIN, GAP = 16, 5
TOP = 64
MAX_LEGEND = 4
STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
"""Upper ends of an axis."""
INK, FAINT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
LINES = (
    "#c05621", "#3a6ea5", "#2f855a", "#97266d", "#b7791f", "#2c7a7b", "#9b2c2c", "#553c9a",
    "#718096", "#38a169", "#dd6b20", "#3182ce",
)  # fmt: skip
GOOD, BAD = "#2f855a", "#c53030"
PAPER, CARD = "#f4f6f8", "#ffffff"

Points = Sequence[tuple[float, float]]


def draw(dashboard: Dashboard, answers: Answers, shown_s: float) -> str:
    """The picture.

    Args:
        dashboard: its layout.
        answers: of its queries.
        shown_s: how much time they cover.
    """
    parts, y = [], 0
    for row in dashboard.rows:
        parts.append(_text(MARGIN + 4, TOP + y * LINE + 24, row.title, 15, bold=True))
        laid = places(row, y + 1)
        for panel, place in laid:
            parts.append(_panel(panel, place, answers[f"{row.title} / {panel.title}"]))
        y = max(place.y + place.height for _, place in laid)
    width, height = 24 * COLUMN + 2 * MARGIN, TOP + y * LINE + MARGIN
    about = f"{dashboard.description} {shown_s:.0f} s of a small fleet under load."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" fill="{INK}">\n'
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n'
        f"{_text(MARGIN + 4, 30, dashboard.title, 20, bold=True)}\n"
        f"{_text(MARGIN + 4, 52, about, 13, FAINT)}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(panel: Panel, place: GridPosition, answers: Sequence[Answer]) -> str:
    x, y = MARGIN + place.x * COLUMN + GAP, TOP + place.y * LINE + GAP
    width, height = place.width * COLUMN - 2 * GAP, place.height * LINE - 2 * GAP
    body = _figure if panel.kind == "stat" else _graph
    return (
        f"<g transform='translate({x} {y})'><rect width='{width}' height='{height}' rx='4' "
        f"fill='{CARD}' stroke='{GRID}'/>{_text(10, 19, panel.title, 12, bold=True)}"
        f"{body(panel, answers, width, height)}</g>"
    )


def _named(answers: Sequence[Answer]) -> list[tuple[str, Points]]:
    """Every line with its name, the highest first, without the points that are no number."""
    found = []
    for answer in answers:
        for line in answer.lines:
            points = [(at, value) for at, value in line.points if math.isfinite(value)]
            if points:
                found.append((_legend(answer, line), points))
    return sorted(found, key=lambda one: -max(value for _, value in one[1]))


def _legend(answer: Answer, line: Series) -> str:
    def said(name: re.Match[str]) -> str:
        value = line.labels.get(name[1], "")
        if name[1] == "instance":  # all on one machine
            return value.rpartition(":")[2]
        return value.removeprefix("flambeau-")

    return re.sub(r"{{(\w+)}}", said, answer.query.legend) or "all"


def _figure(panel: Panel, answers: Sequence[Answer], width: int, height: int) -> str:
    lines = _named(answers)
    if not lines:
        return _text(width / 2, height / 2 + 16, "no data", 14, FAINT, "middle")
    points = lines[0][1]
    value = points[-1][1]
    bad = panel.warn_above is not None and value >= panel.warn_above
    colour = BAD if bad else GOOD
    area = _scaled(points, (4, height - 34), (width - 8, 30), _span([points]), _top([points]))
    spark = _path(area, colour, 1.2)
    figure = _text(width / 2, height / 2 + 14, _said(value, panel.unit), 26, colour, "middle")
    return spark + figure


def _graph(panel: Panel, answers: Sequence[Answer], width: int, height: int) -> str:
    lines = _named(answers)
    if not lines:
        return _text(width / 2, height / 2, "no data", 14, FAINT, "middle")
    legend = min(len(lines), MAX_LEGEND) + (len(lines) > MAX_LEGEND)
    left, top, right = 62, 32, width - 12
    bottom = height - 16 - 15 * ((legend + 1) // 2)
    drawn = _stacked([points for _, points in lines]) if panel.stacked else [p for _, p in lines]
    high, span = _top(drawn, panel.unit), _span(drawn)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - (bottom - top) * share
        parts.append(f"<path d='M{left} {y:.1f}H{right}' stroke='{GRID}'/>")
        parts.append(_text(left - 6, y + 4, _said(high * share, panel.unit), 10, FAINT, "end"))
    frame = ((left, top), (right - left, bottom - top))
    for n, points in reversed(list(enumerate(drawn))):
        scaled = _scaled(points, *frame, span, high)
        parts.append(_path(scaled, LINES[n % len(LINES)], 1.6, bottom if panel.stacked else None))
    for n, (name, points) in enumerate(lines[:MAX_LEGEND]):
        x, y = 12 + (n % 2) * (width - 24) / 2, bottom + 18 + 15 * (n // 2)
        colour = LINES[n % len(LINES)]
        parts.append(f"<rect x='{x:.0f}' y='{y - 8:.0f}' width='9' height='9' fill='{colour}'/>")
        label = f"{name[:26]}  {_said(points[-1][1], panel.unit)}"
        parts.append(_text(x + 14, y, label, 10.5))
    if len(lines) > MAX_LEGEND:
        more = f"and {len(lines) - MAX_LEGEND} more"
        parts.append(_text(12, bottom + 18 + 15 * (MAX_LEGEND // 2), more, 10.5, FAINT))
    return "".join(parts)


def _stacked(lines: Sequence[Points]) -> list[Points]:
    """Each line upon those before it."""
    below: dict[float, float] = {}
    found: list[Points] = []
    for points in lines:
        raised = [(at, below.get(at, 0.0) + value) for at, value in points]
        below.update(raised)
        found.append(raised)
    return found


def _top(lines: Sequence[Points], unit: str = "") -> float:
    """A round number that no point is above."""
    high = max(value for points in lines for _, value in points)
    if high <= 0:
        return 1.0
    thousands = 1024 ** int(math.log(high, 1024)) if unit == "bytes" and high >= 1 else 1
    power = float(10.0 ** math.floor(math.log10(high / thousands)) * thousands)
    return power * next(step for step in STEPS if high <= step * power * 1.0001)


def _span(lines: Sequence[Points]) -> tuple[float, float]:
    times = [at for points in lines for at, _ in points]
    return min(times), max(max(times), min(times) + 1)


def _scaled(
    points: Points,
    corner: tuple[float, float],
    size: tuple[float, float],
    span: tuple[float, float],
    high: float,
) -> list[tuple[float, float]]:
    across = size[0] / (span[1] - span[0])
    return [
        (corner[0] + (at - span[0]) * across, corner[1] + size[1] * (1 - max(value, 0) / high))
        for at, value in points
    ]


def _path(
    points: Sequence[tuple[float, float]], colour: str, width: float, floor: float | None = None
) -> str:
    """A line; with a floor, filled down to it."""
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    line = (
        f"<polyline points='{drawn}' fill='none' stroke='{colour}' stroke-width='{width}' "
        "stroke-linejoin='round'/>"
    )
    if floor is None:
        return line
    ends = f"{points[-1][0]:.1f},{floor:.1f} {points[0][0]:.1f},{floor:.1f}"
    tint = f"<polygon points='{drawn} {ends}' fill='{CARD}'/>"
    return f"{tint}<polygon points='{drawn} {ends}' fill='{colour}' fill-opacity='0.25'/>{line}"


def _said(value: float, unit: str) -> str:
    """A number as Grafana would write it."""
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if value * factor >= 1 or name == "µs":
                return f"{value * factor:.3g} {name}" if value else "0 s"
    if unit == "bytes":
        power = min(int(math.log(value, 1024)), 3) if value >= 1 else 0
        return f"{value / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return text + {"reqps": " req/s", "ops": " /s"}.get(unit, "")


def _text(
    x: float, y: float, text: str, size: float, colour: str = INK, anchor: str = "start",
    bold: bool = False,
) -> str:  # fmt: skip
    weight = " font-weight='bold'" if bold else ""
    return (
        f"<text x='{x:.0f}' y='{y:.0f}' font-size='{size}' fill='{colour}' "
        f"text-anchor='{anchor}'{weight}>{escape(text)}</text>"
    )
