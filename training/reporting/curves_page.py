"""Draws the curves of a run as plots of the report page. Pure: curves in, markup out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from model_store.metric import is_share
from training.reporting.curves import Curve, PhaseCurves
from training.reporting.plot import Mark, draw_plot

if TYPE_CHECKING:
    from markupsafe import Markup

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
PHASES = {"prune": "Fine-tuning after pruning", "qat": "Training for 8 bits"}


def curve_sections(
    phases: Sequence[PhaseCurves], best_epoch: int
) -> list[dict[str, "str | list[Markup]"]]:
    """Returns the `title`, `notes` and `plots` by epoch of each phase.

    Args:
        phases: phases of the run; the first is the training.
        best_epoch: best epoch of the last phase with published weights; a dashed line marks it if
            the training is the only phase.
    """
    best = best_epoch if len(phases) == 1 else None
    return [
        {
            "title": PHASES.get(phase.phase, "Learning curves"),
            "notes": _notes(phase, best),
            "plots": _plots(phase, best),
        }
        for phase in phases
    ]


def _notes(phase: PhaseCurves, best_epoch: int | None) -> str:
    shown = max((len(curve.points) for curve in phase.curves), default=0)
    notes = [] if best_epoch is None else ["The dashed line marks the best epoch."]
    if shown < phase.epochs:
        notes.append(f"{shown} of {phase.epochs} epochs are shown.")
    return " ".join(notes)


def _plots(phase: PhaseCurves, best_epoch: int | None) -> "list[Markup]":
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
        plots.append(draw_plot(title, marks, lines=True, joined=best, width=PLOT_WIDTH))
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
