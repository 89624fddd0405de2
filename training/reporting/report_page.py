"""Renders the report of a run as one self-contained HTML page.

Pure: a report in, text out. The artifacts come first; then the training (`curves_page`), and the
answers of the checkpoint (`examination_page`). Plots of artifacts: latency by batch size, and the
metric against latency, where a line joins the Pareto-optimal artifacts; unpublished ones are
hollow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from model_store.metric import MeasuredMetric, is_share
from training.reporting.curves_page import curves_section
from training.reporting.examination_page import EXAMINATION_STYLE, examination_section
from training.reporting.plot import STYLE, Mark, Point, draw_plot, table_cells
from training.reporting.report import Report, artifact_cells, checkpoint_cells, headings


def report_page(report: Report) -> str:
    """Renders the page.

    Args:
        report: report of one run.
    """
    title = f"{report.model}: recipe {report.run}"
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(report.metrics.items()))
    rows = [
        checkpoint_cells(report),
        *(artifact_cells(report, one) for one in report.artifacts),
    ]
    table = "".join(f"<tr>{table_cells('td', row)}</tr>" for row in rows)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{STYLE}{EXAMINATION_STYLE}</style><h1>{escape(title)}</h1>"
        f"<p>Best of {report.epochs} epochs: {report.best_epoch}. {escape(metrics)}</p>"
        f"{_guess(report)}{_comparison(report)}"
        f"<table><tr>{table_cells('th', headings(report))}</tr>{table}</table>{_not_tried(report)}"
        f"{_latency_plot(report)}{_metric_plot(report)}"
        f"{curves_section(report.curves, report.best_epoch)}"
        f"{examination_section(report.examination)}</html>\n"
    )


def _guess(report: Report) -> str:
    """Compares the model with the best constant answer."""
    guess = report.guess
    if guess is None:
        return ""
    warning = guess.warning()
    if warning is None:
        return f"<p>Without the inputs: {escape(guess.text())}.</p>"
    return f"<p><b>Warning:</b> {escape(warning)}.</p>"


def _comparison(report: Report) -> str:
    """Compares the version with the live one."""
    found = report.comparison
    return "" if found is None else f"<p>Against production: {escape(found.text())}.</p>"


def _not_tried(report: Report) -> str:
    """Lists the time that `export: auto` spent, and the methods it did not try."""
    if report.auto is None:
        return ""
    spent = f"{len(report.artifacts)} candidates took {report.auto.spent_s:.0f} s"
    rows = "".join(
        f"<tr>{table_cells('td', [f'{one.name} {one.method or str()}'.strip(), one.reason])}</tr>"
        for one in report.auto.not_tried
    )
    return (
        f"<p>export: auto: {spent}, of a budget of {report.auto.budget_s:g} s.</p>"
        f"<table><tr>{table_cells('th', ['not tried', 'reason'])}</tr>{rows}</table>"
    )


def _latency_plot(report: Report) -> str:
    """Plots milliseconds per run by batch size; both axes are logarithmic."""
    marks = [
        Mark(one.name, tuple((float(rows), ms) for rows, ms in sorted(one.latency_ms.items())))
        for one in _measured(report)
    ]
    return draw_plot("Milliseconds of a run, by rows", marks, log_x=True, log_y=True, lines=True)


def _metric_plot(report: Report) -> str:
    """Plots the metric by milliseconds per row at the best batch size, on a logarithmic axis."""
    metric = report.checkpoint.metric
    measured = [one for one in _measured(report) if one.metric is not None]
    marks = [Mark(one.name, (one.point(),), one.published) for one in measured]
    published = [one.point() for one in measured[1:] if one.published]
    sign = -1 if metric.better == "lower" else 1
    front = [(ms, sign * y) for ms, y in pareto_front([(ms, sign * y) for ms, y in published])]
    unit = " in percent" if is_share(metric.name) else f" ({metric.better} is better)"
    title = f"{metric.name.capitalize()}{unit}, by milliseconds a row"
    return draw_plot(title, marks, log_x=True, joined=front)


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Returns the points that no other point dominates, in order of increasing cost.

    Args:
        points: (cost, worth) pairs.
    """
    front: list[Point] = []
    for cost, worth in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or worth > front[-1][1]:
            front.append((cost, worth))
    return front


@dataclass(frozen=True, slots=True)
class _Measured:
    """The checkpoint, or an artifact that was measured."""

    name: str
    latency_ms: Mapping[int, float]
    metric: MeasuredMetric | None
    published: bool

    def point(self) -> Point:
        """Returns milliseconds per row, and the metric; shares in percent."""
        assert self.metric is not None, "what was not judged has no point"
        row_ms = min(ms / rows for rows, ms in self.latency_ms.items())
        return row_ms, self.metric.value * (100 if is_share(self.metric.name) else 1)


def _measured(report: Report) -> list[_Measured]:
    """Lists the measured models, the checkpoint first."""
    checkpoint, published = report.checkpoint, report.published()
    artifacts = [
        _Measured(report.label(one), one.latency_ms, one.metric, one in published)
        for one in report.artifacts
        if one.latency_ms
    ]
    return [_Measured("checkpoint", checkpoint.latency_ms, checkpoint.metric, True), *artifacts]
