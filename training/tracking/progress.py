"""Displays the progress of training: a bar on a terminal, otherwise a line per epoch."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.progress import Progress, Task, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from model_store.metric import BETTER, is_share
from training.recipe.parts.task import METRICS
from training.recipe.recipe import Recipe

OPTIONAL = ("verb", "loss", "name", "rate")
"""Parts of the progress line that are omitted on a narrow terminal, in this order."""
HEAD = ("verb", "name", "epoch")
"""Parts before the bar."""
BAR_WIDTHS = (10, 40)
"""Minimum and maximum columns of the bar, which uses the space that the text leaves."""
GAP = 2
"""Blanks between parts of the line."""


class TrainingProgress(Protocol):
    """Receives every step and every epoch."""

    def __enter__(self) -> Self:
        """Starts the display."""

    def __exit__(self, *exception: object) -> None:
        """Restores the terminal."""

    def advance(self, rows: int) -> None:
        """Reports a step with this many rows."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Reports the end of an epoch, counted from 1."""


class TerminalBar:
    """A progress bar in one line. See `open_progress` for the arguments."""

    def __init__(
        self,
        console: Console,
        recipe: Recipe,
        rows: int,
        rows_done: int,
        clock: Callable[[], float],
    ) -> None:
        self._epochs = recipe.train.epochs
        self._bar = _Line(console=console, get_time=clock)
        self._task = self._bar.add_task(
            recipe.name,
            total=self._epochs * rows,
            completed=rows_done,
            epoch=f"{min(rows_done // rows + 1, self._epochs)}/{self._epochs}",
            figures={},
        )

    def __enter__(self) -> Self:
        """See `TrainingProgress`."""
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """See `TrainingProgress`."""
        self._bar.stop()

    def advance(self, rows: int) -> None:
        """See `TrainingProgress.advance`."""
        self._bar.advance(self._task, rows)

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `TrainingProgress.end_epoch`."""
        shown = f"{min(epoch + 1, self._epochs)}/{self._epochs}"
        self._bar.update(self._task, epoch=shown, figures=_figures(metrics))


class EpochLines:
    """One line per epoch, for files and pipes. See `open_progress` for the arguments."""

    def __init__(
        self,
        console: Console,
        recipe: Recipe,
        rows: int,
        rows_done: int,
        clock: Callable[[], float],
    ) -> None:
        self._console, self._recipe, self._clock = console, recipe, clock
        self._left = recipe.train.epochs * rows - rows_done
        self._rows = self._rows_in_all = 0
        self._begun = self._since = clock()

    def __enter__(self) -> Self:
        """See `TrainingProgress`."""
        self._begun = self._since = self._clock()
        return self

    def __exit__(self, *exception: object) -> None:
        """See `TrainingProgress`."""

    def advance(self, rows: int) -> None:
        """See `TrainingProgress.advance`."""
        self._rows += rows

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `TrainingProgress.end_epoch`."""
        now = self._clock()
        rate = self._rows / max(now - self._since, 1e-9)
        self._rows_in_all += self._rows
        self._left -= self._rows
        # The rate of the whole run: one slow epoch does not predict the next ones.
        left_s = self._left * (now - self._begun) / max(self._rows_in_all, 1)
        self._rows, self._since = 0, now
        figures = _joined(_figures(metrics))
        say(
            self._console,
            f"training {self._recipe.name}  epoch {epoch}/{self._recipe.train.epochs}  "
            f"{rate:,.0f} samples/s  {timedelta(seconds=round(left_s))} left  {figures}",
        )


def open_progress(
    console: Console,
    recipe: Recipe,
    rows: int,
    epochs_done: int,
    in_epoch: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> TrainingProgress:
    """Returns the display that suits the console.

    Its remaining time is for all epochs: patience may end a run earlier.

    Args:
        console: console to display on.
        recipe: recipe with the name and the number of epochs.
        rows: training rows per epoch.
        epochs_done: epochs that a resumed run has finished before.
        in_epoch: rows of the next epoch that were processed before.
        clock: clock in seconds.
    """
    kind = TerminalBar if console.is_terminal else EpochLines
    return kind(console, recipe, rows, epochs_done * rows + in_epoch, clock)


def say(console: Console, line: str) -> None:
    """Prints one line without wrapping, colours or markup."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


class _Line(Progress):
    """A line that is complete at any width: the bar shrinks, then parts are omitted."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yields the line of each task."""
        for task in self.tasks:
            parts = fitting_parts(_parts(task), self.console.width)
            head = {part: parts.pop(part) for part in HEAD if part in parts}
            words = [Text(text, no_wrap=True) for text in (_joined(head), _joined(parts))]
            fewest, most = BAR_WIDTHS
            width = self.console.width - sum(word.cell_len + GAP for word in words)
            line = Table.grid(padding=(0, GAP, 0, 0))
            if width < fewest:
                line.add_row(*words)
            else:
                bar = ProgressBar(task.total, task.completed, min(width, most))
                line.add_row(words[0], bar, words[1])
            yield line


def _parts(task: Task) -> dict[str, str]:
    """Returns the parts of the line; the rate is that of the last seconds, as rich measures it."""
    rate = task.finished_speed or task.speed
    parts = {
        "verb": "training",
        "name": task.description,
        "epoch": f"epoch {task.fields['epoch']}",
        "rate": f"{rate:,.0f} samples/s" if rate else "",
        "left": f"{TimeRemainingColumn().render(task).plain} left",
        **task.fields["figures"],
    }
    return {part: text for part, text in parts.items() if text}


def fitting_parts(parts: Mapping[str, str], width: int) -> dict[str, str]:
    """Returns the parts of a line that fit the terminal.

    Args:
        parts: text of each part, by name.
        width: width of the terminal.
    """
    shown = dict(parts)
    for part in OPTIONAL:
        if len(_joined(shown)) <= width:
            break
        shown.pop(part, None)
    return shown


def _joined(parts: Mapping[str, str]) -> str:
    verb, *others = parts if "verb" in parts else ("", *parts)
    text = (" " * GAP).join(parts[other] for other in others)
    return f"{parts[verb]} {text}" if verb else text


def _figures(metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns the loss, and the metric of the task."""
    # Labels 0 and 1 have an accuracy too, which is not their main metric: classes come last.
    own = [name for name in metrics if name.startswith("val/") and name[4:] not in BETTER]
    names = [*own, *(f"val/{of_task[0]}" for of_task in reversed(METRICS.values()))]
    judged = next((name for name in names if name in metrics), "val/loss")
    value = f"{metrics[judged]:.3f}" if is_share(judged) else f"{metrics[judged]:.4g}"
    return {"loss": f"loss {metrics['train/loss']:.3f}", "judged": f"{judged} {value}"}
