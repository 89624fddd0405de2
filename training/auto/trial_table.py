"""Displays the progress of `export: auto`.

A live table on a terminal; otherwise a line for each attempt.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from training.reporting.fitting_columns import fitting_columns
from training.reporting.report import ArtifactReport, latency_cells, megabytes, parity_text, verdict
from training.tracking.progress import say

HEADINGS = ("candidate", "state", "parity", "metric", "batch 1", "batch 32", "memory", "verdict")
FIGURES = slice(2, 7)
OPTIONAL = ("memory", "batch 1", "parity", "batch 32")
"""Columns omitted on a narrow terminal, the least important first."""
LEFT_OUT, WAITING, DONE = "left out", "waiting", "done"
EXPORTING, VERIFYING, TIMING = "exporting", "verifying", "timing again"
"""States of a candidate."""


class TrialTable(Protocol):
    """Receives the progress of every candidate, by its label."""

    def __enter__(self) -> Self:
        """Starts the display."""

    def __exit__(self, *exception: object) -> None:
        """Restores the terminal, and keeps the last table."""

    def state(self, label: str, state: str) -> None:
        """Reports the next state of a candidate."""

    def done(self, label: str, report: ArtifactReport) -> None:
        """Reports that a candidate was verified, refused, timed again, or dropped."""

    def left_out(self, label: str, reason: str) -> None:
        """Reports that a candidate is not tried."""


class LiveTable:
    """A live table on a terminal."""

    def __init__(self, console: Console, labels: Sequence[str]) -> None:
        self._rows = {label: _row(label, WAITING) for label in labels}
        self._console = console
        self._live = Live(self._table(), console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        """See `TrialTable`."""
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """See `TrialTable`."""
        self._live.stop()

    def state(self, label: str, state: str) -> None:
        """See `TrialTable.state`."""
        self._show({label: _row(label, state)})

    def done(self, label: str, report: ArtifactReport) -> None:
        """See `TrialTable.done`."""
        self._show({label: _done_row(label, report)})

    def left_out(self, label: str, reason: str) -> None:
        """See `TrialTable.left_out`."""
        self._show({label: _row(label, LEFT_OUT, verdict=reason)})

    def _show(self, changed: Mapping[str, list[str]]) -> None:
        self._rows |= changed
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        rows = list(self._rows.values())
        shown = fitting_columns(HEADINGS, rows, self._console.width, OPTIONAL)
        for heading in [HEADINGS[place] for place in shown[:-1]]:
            figure = heading in HEADINGS[FIGURES]
            table.add_column(heading, justify="right" if figure else "left", no_wrap=True)
        table.add_column(HEADINGS[-1])  # rich narrows columns that may wrap before all others
        for row in rows:
            *figures, verdict = (row[place] for place in shown)
            table.add_row(*figures, Text(verdict, no_wrap=True, overflow="ellipsis"))
        return table


class TrialLines:
    """One line for each attempt, and one for each dropped candidate, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: set[str] = set()

    def __enter__(self) -> Self:
        """See `TrialTable`."""
        return self

    def __exit__(self, *exception: object) -> None:
        """See `TrialTable`."""

    def state(self, label: str, state: str) -> None:
        """See `TrialTable.state`."""

    def done(self, label: str, report: ArtifactReport) -> None:
        """See `TrialTable.done`."""
        first, _, *figures, last = zip(HEADINGS, _done_row(label, report), strict=True)
        cells = [first, *figures, last]
        if label in self._said:
            if report.dropped is None:
                return  # timed again: the report's own table follows
            cells = [first, last]
        self._said.add(label)
        shown = [
            cell if heading == "metric" else f"{heading} {cell}"  # the metric's text has its name
            for heading, cell in cells
            if cell not in ("", "-")
        ]
        say(self._console, "  ".join(["export: auto", *shown]))

    def left_out(self, label: str, reason: str) -> None:
        """See `TrialTable.left_out`."""
        say(self._console, f"export: auto  candidate {label}  left out: {reason}")


def open_trial_table(console: Console, labels: Sequence[str]) -> TrialTable:
    """Returns the display that suits the console.

    Args:
        console: console to display on.
        labels: labels of all candidates, in order of trial.
    """
    return LiveTable(console, labels) if console.is_terminal else TrialLines(console)


def _row(label: str, state: str, verdict: str = "") -> list[str]:
    return [label, state, "", "", "", "", "", verdict]


def _done_row(label: str, report: ArtifactReport) -> list[str]:
    first, *_, last = latency_cells(report.latency_ms)
    metric = "-" if report.metric is None else f"{report.metric.name} {report.metric.text()}"
    figures = [parity_text(report), metric, first, last]
    return [label, DONE, *figures, megabytes(report.peak_memory_bytes), verdict(report)]
