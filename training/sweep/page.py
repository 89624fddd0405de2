"""Renders a search as one self-contained HTML page (`page.html`). Pure.

Plots: the metric by trial, where a dashed line joins each new best trial, and by each parameter.
Trials that ended early are hollow and show the metric of their last epoch.
"""

from collections.abc import Callable, Sequence

from training.reporting.plot import Mark, Plot, Point
from training.reporting.templates import render
from training.sweep.parameter import Parameter, parse_parameter
from training.sweep.records import SweepRecord, TrialRecord, figure_text
from training.sweep.table import cells, headings

Across = Callable[[TrialRecord], float]
"""Maps a trial to its position on the horizontal axis."""


def sweep_page(record: SweepRecord) -> str:
    """Renders the page."""
    parameters = [parse_parameter(text) for text in record.parameters]
    paths = [parameter.path for parameter in parameters]
    return render(
        "sweep/page.html",
        {
            "title": f"search for the best {record.name}",
            "record": record,
            "plots": [_by_trial(record), *(_by_value(record, one) for one in parameters)],
            # PED-ANOVA; Watanabe et al., IJCAI 2023.
            "importances": sorted(record.importances.items(), key=lambda item: -item[1]),
            "headings": headings(record.metric, paths),
            "rows": [cells(trial, paths) for trial in record.trials],
            "best": record.best(),
            "figure_text": figure_text,
        },
    )


def _marks(record: SweepRecord, across: Across) -> list[Mark]:
    """Collects the completed trials, and the pruned ones as hollow points."""
    found = []
    for state in ("done", "pruned"):
        points = tuple(
            (across(trial), trial.value)
            for trial in record.trials
            if trial.state == state and trial.value is not None
        )
        if points:
            found.append(Mark(state, points, published=state == "done"))
    return found


def _by_trial(record: SweepRecord) -> Plot:
    """Plots the metric by trial, in starting order."""
    title = f"{record.metric}, by trial"
    return Plot(title, _marks(record, lambda trial: trial.number), joined=_best_so_far(record))


def _best_so_far(record: SweepRecord) -> Sequence[Point]:
    sign = -1 if record.direction == "lower" else 1
    found: list[Point] = []
    for trial in record.trials:
        if trial.state != "done" or trial.value is None:
            continue
        if not found or sign * trial.value > sign * found[-1][1]:
            found.append((trial.number, trial.value))
    return found


def _by_value(record: SweepRecord, parameter: Parameter) -> Plot:
    """Plots the metric by one parameter; choices that are not numbers by their index."""
    numbers = all(
        isinstance(choice, int | float) and not isinstance(choice, bool)
        for choice in parameter.choices
    )

    def across(trial: TrialRecord) -> float:
        value = trial.values[parameter.path]
        return float(value) if numbers else float(parameter.choices.index(value))

    title = f"{record.metric}, by {parameter.path}"
    if not numbers:
        places = (f"{place} {label}" for place, label in enumerate(parameter.labels()))
        title += f" ({', '.join(places)})"
    return Plot(title, _marks(record, across), log_x=parameter.kind == "log")
