"""The report of a run as one HTML page: a table and two plots, with nothing to fetch.

Pure: a report in, text out. Plots: latency by batch size, and accuracy against latency, where a
line joins the artifacts to which no other is both faster and as accurate; what is not published is
hollow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from training.report import Report, artifact_cells, checkpoint_cells, headings

WIDTH, HEIGHT = 620, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 45
COLOURS = (
    "#1f2933", "#3a6ea5", "#c05621", "#2f855a", "#97266d", "#b7791f", "#2c7a7b", "#9b2c2c",
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
    """Points of one artifact, or of the checkpoint."""

    name: str
    points: tuple[Point, ...]
    published: bool = True


def report_page(report: Report) -> str:
    """The page.

    Args:
        report: of one run.
    """
    title = f"{report.model}: recipe {report.run}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(report.metrics.items()))
    rows = [checkpoint_cells(report), *(artifact_cells(report, one) for one in report.artifacts)]
    table = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
        f"<p>Best of {report.epochs} epochs: {report.best_epoch}. {escape(metrics)}</p>"
        f"<table><tr>{_cells('th', headings())}</tr>{table}</table>{_not_tried(report)}"
        f"{_latency_plot(report)}{_accuracy_plot(report)}</html>\n"
    )


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _not_tried(report: Report) -> str:
    """What `export: auto` spent, and what it left out."""
    if report.auto is None:
        return ""
    spent = f"{len(report.artifacts)} candidates took {report.auto.spent_s:.0f} s"
    rows = "".join(
        f"<tr>{_cells('td', [f'{one.name} {one.method or str()}'.strip(), one.reason])}</tr>"
        for one in report.auto.not_tried
    )
    return (
        f"<p>export: auto: {spent}, of a budget of {report.auto.budget_s:g} s.</p>"
        f"<table><tr>{_cells('th', ['not tried', 'reason'])}</tr>{rows}</table>"
    )


def _latency_plot(report: Report) -> str:
    """Milliseconds of a run by its rows; both axes in powers."""
    marks = [
        Mark(one.name, tuple((float(rows), ms) for rows, ms in sorted(one.latency_ms.items())))
        for one in _measured(report)
    ]
    return _plot("Milliseconds of a run, by rows", marks, log_x=True, log_y=True, lines=True)


def _accuracy_plot(report: Report) -> str:
    """Accuracy by the milliseconds a row takes at the best batch size, which is in powers."""
    measured = [one for one in _measured(report) if one.accuracy is not None]
    marks = [Mark(one.name, (one.point(),), one.published) for one in measured]
    front = pareto_front([one.point() for one in measured[1:] if one.published])
    return _plot("Accuracy in percent, by milliseconds a row", marks, log_x=True, joined=front)


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Those to which no other lies further left and as high, from left to right.

    Args:
        points: (cost, worth) each.
    """
    front: list[Point] = []
    for cost, worth in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or worth > front[-1][1]:
            front.append((cost, worth))
    return front


@dataclass(frozen=True, slots=True)
class _Measured:
    """The checkpoint, or an artifact that was run."""

    name: str
    latency_ms: Mapping[int, float]
    accuracy: float | None
    published: bool

    def point(self) -> Point:
        """Milliseconds a row, and percent."""
        row_ms = min(ms / rows for rows, ms in self.latency_ms.items())
        return row_ms, 100 * (self.accuracy or 0.0)


def _measured(report: Report) -> list[_Measured]:
    """The checkpoint first."""
    checkpoint, published = report.checkpoint, report.published()
    artifacts = [
        _Measured(report.label(one), one.latency_ms, one.accuracy, one in published)
        for one in report.artifacts
        if one.latency_ms
    ]
    return [_Measured("checkpoint", checkpoint.latency_ms, checkpoint.accuracy, True), *artifacts]


def _plot(
    title: str,
    marks: Sequence[Mark],
    *,
    log_x: bool = False,
    log_y: bool = False,
    lines: bool = False,
    joined: Sequence[Point] = (),
) -> str:
    """One plot as SVG, with a legend below the title's line."""
    every = [point for mark in marks for point in mark.points]
    if not every:
        return ""
    across = _Axis([x for x, _ in every], LEFT, WIDTH - RIGHT, log_x)
    up = _Axis([y for _, y in every], HEIGHT - BOTTOM, TOP, log_y)
    parts = [_text(LEFT, 22, title, "font-weight='bold'")]
    for value in across.ticks():
        parts.append(_text(across.at(value), HEIGHT - 22, f"{value:.3g}", "text-anchor='middle'"))
    for value in up.ticks():
        y = up.at(value)
        parts.append(f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='#e4e7eb'/>")
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
        tip = f"<title>{escape(mark.name)}</title>"
        dot = f"r='4' stroke='{colour}' fill='{colour if mark.published else 'white'}'"
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' {dot}>{tip}</circle>" for x, y in places]
        parts.append(_text(WIDTH + 14, TOP + 18 * number, mark.name, ""))
        parts.append(f"<circle cx='{WIDTH + 4}' cy='{TOP + 18 * number - 4}' {dot}/>")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH + 140}' height='{HEIGHT}' "
        f"font-size='12' fill='#1f2933' font-family='system-ui,sans-serif'>{''.join(parts)}</svg>"
    )


class _Axis:
    """Where values lie between two edges, evenly or by their logarithms."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self._scale = _log if log else float
        self._log = log
        low, high = min(map(self._scale, values)), max(map(self._scale, values))
        margin = (high - low) * 0.08 or 0.5
        self._low, self._high = low - margin, high + margin
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Where a value lies."""
        share = (self._scale(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Five values along the axis."""
        places = [self._low + (self._high - self._low) * n / 4 for n in range(5)]
        return [10**place for place in places] if self._log else places


def _log(value: float) -> float:
    return math.log10(max(value, 1e-9))


def _text(x: float, y: float, text: str, style: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"
