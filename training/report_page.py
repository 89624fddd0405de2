"""The report of a run as one HTML page: a table and two plots, with nothing to fetch.

Pure: a report in, text out. Plots: latency by batch size, and accuracy against latency.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from training.report import CheckpointReport, Report, artifact_cells, checkpoint_cells, headings

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


@dataclass(frozen=True, slots=True)
class Mark:
    """Points of one artifact, or of the checkpoint."""

    name: str
    points: tuple[tuple[float, float], ...]


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
        f"<table><tr>{_cells('th', headings())}</tr>{table}</table>"
        f"{_latency_plot(report)}{_accuracy_plot(report)}</html>\n"
    )


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _latency_plot(report: Report) -> str:
    """Milliseconds of a run by its rows; both axes in powers."""
    marks = [
        Mark(name, tuple((float(rows), ms) for rows, ms in sorted(latency.items())))
        for name, latency in _latencies(report).items()
        if latency
    ]
    return _plot("Milliseconds of a run, by rows", marks, log_x=True, log_y=True, lines=True)


def _accuracy_plot(report: Report) -> str:
    """Accuracy by the milliseconds a row takes at the best batch size, which is in powers."""
    accuracies = {"checkpoint": report.checkpoint.accuracy} | {
        one.name: one.accuracy for one in report.artifacts if one.accuracy is not None
    }
    marks = [
        Mark(name, ((min(ms / rows for rows, ms in latency.items()), accuracies[name] * 100),))
        for name, latency in _latencies(report).items()
        if latency and name in accuracies
    ]
    return _plot("Accuracy in percent, by milliseconds a row", marks, log_x=True)


def _latencies(report: Report) -> Mapping[str, Mapping[int, float]]:
    checkpoint: CheckpointReport = report.checkpoint
    return {"checkpoint": checkpoint.latency_ms} | {
        one.name: one.latency_ms for one in report.artifacts
    }


def _plot(
    title: str,
    marks: Sequence[Mark],
    *,
    log_x: bool = False,
    log_y: bool = False,
    lines: bool = False,
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
    for number, mark in enumerate(marks):
        colour = COLOURS[number % len(COLOURS)]
        places = [(across.at(x), up.at(y)) for x, y in mark.points]
        if lines:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}'/>")
        tip = f"<title>{escape(mark.name)}</title>"
        parts += [
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'>{tip}</circle>"
            for x, y in places
        ]
        parts.append(_text(WIDTH + 14, TOP + 18 * number, mark.name, ""))
        parts.append(
            f"<circle cx='{WIDTH + 4}' cy='{TOP + 18 * number - 4}' r='4' fill='{colour}'/>"
        )
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
