"""Plots the curves of a run for the report page. Pure: curves in, plots out."""

from model_store.metric import is_share
from training.reporting.curves import Curve, PhaseCurves
from training.reporting.plot import Mark, Plot

PLOT_WIDTH = 420
"""Width in pixels; two plots fit side by side."""
CURVE_DOT = 2
TITLES = {
    "loss": "Loss",
    "share": "Metrics in percent",
    "error": "Error",
    "val/r2": "Share of the variance explained (R²)",
    "train/learning_rate": "Learning rate",
    "train/gradient_norm": "Mean gradient norm",
}
"""Titles of shared plots, in order; any other metric has its own plot."""


def curve_plots(phase: PhaseCurves, best_epoch: int | None) -> list[Plot]:
    """Plots the metrics of one phase by epoch; those of one unit share a plot.

    Args:
        phase: phase of the run.
        best_epoch: epoch that a dashed line marks, if any.
    """
    groups: dict[str, list[Curve]] = {title: [] for title in TITLES}
    for curve in phase.curves:
        groups.setdefault(_group(curve.metric), []).append(curve)
    plots = []
    for name, curves in groups.items():
        marks = [_mark(curve) for curve in curves]
        values = [y for mark in marks for _, y in mark.points]
        ends = [] if best_epoch is None or not values else [min(values), max(values)]
        best = [(float(best_epoch or 0), end) for end in ends]
        title = f"{TITLES.get(name, name)}, by epoch"
        plots.append(Plot(title, marks, lines=True, joined=best, width=PLOT_WIDTH))
    return plots


def _group(metric: str) -> str:
    """Returns the plot of a metric; metrics of one unit share a plot."""
    last = metric.rpartition("/")[2]
    if last == "loss":
        return "loss"
    return "share" if is_share(metric) else "error" if last in ("rmse", "mae") else metric


def _mark(curve: Curve) -> Mark:
    factor = 100 if is_share(curve.metric) else 1
    points = tuple((float(epoch), factor * value) for epoch, value in curve.points)
    tips = tuple(f"{curve.metric}, epoch {epoch:g}: {value:.4g}" for epoch, value in points)
    return Mark(curve.metric, points, radii=(CURVE_DOT,) * len(points), tips=tips)
