"""A progress bar on standard error, of a terminal or a notebook."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def progress_bar(title: str, total: int | None, shown: bool | None) -> Iterator[Callable[[], None]]:
    """Shows a bar during its block, and yields the function that advances it by one.

    Args:
        title: text before the bar.
        total: number of steps; None if it is unknown.
        shown: False for no bar; None for one only if standard error is a terminal or a notebook.
    """
    if shown is False or (shown is None and not _is_watched()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


def _is_watched() -> bool:
    """Returns True for a terminal, and for a notebook that can draw the bar."""
    in_notebook = "ipykernel" in sys.modules and find_spec("ipywidgets") is not None
    return in_notebook or sys.stderr.isatty()
