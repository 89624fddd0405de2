"""Renders the report of a run as one self-contained HTML page (`report.html`).

Pure: a report in, text out. The artifacts come first; then the training (`curves_page`), and the
answers of the checkpoint (`examination_page`). Plots of artifacts: latency by batch size, and the
metric against latency, where a line joins the Pareto-optimal artifacts; unpublished ones are
hollow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model_store.metric import MeasuredMetric, is_share
from training.reporting.curves_page import curve_plots
from training.reporting.examination_page import calibration_plot, residual_plots
from training.reporting.plot import Mark, Plot, Point
from training.reporting.report import Report, artifact_cells, checkpoint_cells, headings
from training.reporting.templates import render


def report_page(report: Report) -> str:
    """Renders the page.

    Args:
        report: report of one run.
    """
    return render(
        "reporting/report.html",
        {
            "title": f"{report.model}: recipe {report.run}",
            "report": report,
            "warning": None if report.guess is None else report.guess.warning(),
            "headings": headings(report),
            "rows": [
                checkpoint_cells(report),
                *(artifact_cells(report, one) for one in report.artifacts),
            ],
            "plots": [p for p in (_latency_plot(report), _metric_plot(report)) if p is not None],
            "curve_plots": curve_plots,
            "residual_plots": residual_plots,
            "calibration_plot": calibration_plot,
        },
    )


CHECKPOINT = "checkpoint"


def _latency_plot(report: Report) -> Plot:
    """Plots milliseconds per run by batch size; both axes are logarithmic."""
    marks = [
        Mark(one.name, tuple((float(rows), ms) for rows, ms in sorted(one.latency_ms.items())))
        for one in _measured(report)
    ]
    return Plot("Milliseconds of a run, by rows", marks, log_x=True, log_y=True, lines=True)


def _metric_plot(report: Report) -> Plot | None:
    """Plots the metric by milliseconds per row at the best batch size, on a logarithmic axis.

    None for a model without labels.
    """
    metric = report.checkpoint.metric
    if metric is None:
        return None
    measured = [one for one in _measured(report) if one.metric is not None]
    marks = [Mark(one.name, (one.point(),), one.published) for one in measured]
    published = [one.point() for one in measured if one.published and one.name != CHECKPOINT]
    sign = -1 if metric.better == "lower" else 1
    front = [(ms, sign * y) for ms, y in pareto_front([(ms, sign * y) for ms, y in published])]
    unit = " in percent" if is_share(metric.name) else f" ({metric.better} is better)"
    title = f"{metric.name.capitalize()}{unit}, by milliseconds a row"
    return Plot(title, marks, log_x=True, joined=front)


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
    """Lists the measured models, the checkpoint first; an imported one was not timed."""
    checkpoint, published = report.checkpoint, report.published()
    artifacts = [
        _Measured(report.label(one), one.latency_ms, one.metric, one in published)
        for one in report.artifacts
        if one.latency_ms
    ]
    first = _Measured(CHECKPOINT, checkpoint.latency_ms, checkpoint.metric, True)
    return [first, *artifacts] if first.latency_ms else artifacts
