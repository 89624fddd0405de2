"""Answers of a real Prometheus to every panel of a dashboard; a panel without data is a failure."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flambeau.monitoring.panels import Dashboard, Panel, Query
from tests.fixtures.prometheus_process import PrometheusProcess, Series

EVERYTHING = ("$namespace", "$model", "$version", "$gpu")
"""Variables, which Grafana would fill in."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The lines of one query."""

    query: Query
    lines: tuple[Series, ...]

    @property
    def has_data(self) -> bool:
        """True if there is a number to draw; for a query that may be quiet, if there is a line."""
        if self.query.quiet:
            return bool(self.lines)
        return any(not math.isnan(value) for line in self.lines for _, value in line.points)


Answers = Mapping[str, list[Answer]]
"""By title of the panel's row and its own."""


def filled_in(expression: str, window_s: float, shown_s: float) -> str:
    """An expression as Grafana would send it, with everything chosen.

    Args:
        expression: of a panel.
        window_s: what `$__rate_interval` stands for.
        shown_s: what `$__range` stands for.
    """
    for name in EVERYTHING:
        expression = expression.replace(name, ".*")
    expression = expression.replace("$__rate_interval", f"{window_s:g}s")
    return expression.replace("$__range", f"{shown_s:.0f}s")


def ask(
    prometheus: PrometheusProcess, dashboard: Dashboard, shown_s: float, window_s: float
) -> dict[str, list[Answer]]:
    """Runs every query of a dashboard.

    Args:
        prometheus: what has watched.
        dashboard: whose panels.
        shown_s: how far back.
        window_s: of rates.
    """
    end = time.time()
    step_s = max(shown_s / 120, 0.5)

    def answer(query: Query) -> Answer:
        expression = filled_in(query.expression, window_s, shown_s)
        return Answer(query, tuple(prometheus.lines(expression, end - shown_s, end, step_s)))

    return {key: [answer(query) for query in panel.queries] for key, panel in keyed(dashboard)}


def keyed(dashboard: Dashboard) -> Iterator[tuple[str, Panel]]:
    """Panels, by a name that is the only one."""
    for row in dashboard.rows:
        for panel in row.panels:
            yield f"{row.title} / {panel.title}", panel


def without_data(answers: Answers) -> list[str]:
    """The expressions that gave nothing to draw."""
    return [
        f"{key}: {one.query.expression}"
        for key, found in answers.items()
        for one in found
        if not one.has_data
    ]
