"""Displays the progress of a search: a live table on a terminal, otherwise a line per trial."""

from collections.abc import Sequence
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from training.sweep.parameter import Parameter
from training.sweep.records import TrialRecord, figure_text, short, value_text, values_text
from training.tracking.progress import say

OVER = ("done", "pruned", "failed")


class SweepTable(Protocol):
    """Shows the trials of a search."""

    def __enter__(self) -> Self:
        """Starts the display."""

    def __exit__(self, *exception: object) -> None:
        """Restores the terminal, and keeps the last table."""

    def show(self, trials: Sequence[TrialRecord]) -> None:
        """Updates the display after any change."""


class LiveSweepTable:
    """A live table on a terminal.

    Args:
        console: console of a terminal.
        metric: metric of the search.
        parameters: parameters of the search.
    """

    def __init__(self, console: Console, metric: str, parameters: Sequence[Parameter]) -> None:
        self._metric, self._paths = metric, [parameter.path for parameter in parameters]
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        """See `SweepTable`."""
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """See `SweepTable`."""
        self._live.stop()

    def show(self, trials: Sequence[TrialRecord]) -> None:
        """See `SweepTable.show`."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in headings(self._metric, self._paths)[:-1]:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("")  # rich narrows columns that may wrap before all others
        for trial in trials:
            *figures, reason = cells(trial, self._paths)
            table.add_row(*figures, Text(reason, no_wrap=True, overflow="ellipsis"))
        self._live.update(table, refresh=True)


class SweepLines:
    """One line for each finished trial, for files and pipes.

    Args:
        console: console of any kind.
        metric: metric of the search.
    """

    def __init__(self, console: Console, metric: str) -> None:
        self._console, self._metric = console, metric
        self._said: set[int] = set()

    def __enter__(self) -> Self:
        """See `SweepTable`."""
        return self

    def __exit__(self, *exception: object) -> None:
        """See `SweepTable`."""

    def show(self, trials: Sequence[TrialRecord]) -> None:
        """See `SweepTable.show`."""
        for trial in trials:
            if trial.state not in OVER or trial.number in self._said:
                continue
            self._said.add(trial.number)
            value = "" if trial.value is None else f"  {self._metric} {figure_text(trial.value)}"
            reason = "" if trial.reason is None else f": {trial.reason}"
            say(
                self._console,
                f"trial {trial.number}  {values_text(trial.values)}  epochs {trial.epochs}{value}"
                f"  {trial.state}{reason}",
            )


def open_sweep_table(console: Console, metric: str, parameters: Sequence[Parameter]) -> SweepTable:
    """Returns the display that suits the console."""
    if console.is_terminal:
        return LiveSweepTable(console, metric, parameters)
    return SweepLines(console, metric)


def headings(metric: str, paths: Sequence[str]) -> list[str]:
    """Returns the column headings of a trial table."""
    return ["trial", "state", *map(short, paths), "epochs", metric, "took", "reason"]


def cells(trial: TrialRecord, paths: Sequence[str]) -> list[str]:
    """Returns a trial's row of a table."""
    return [
        str(trial.number),
        trial.state,
        *(value_text(trial.values.get(path, "")) for path in paths),
        str(trial.epochs),
        figure_text(trial.value),
        "-" if trial.took_s is None else f"{trial.took_s:.1f} s",
        trial.reason or "",
    ]
