"""Progress of simulated scenarios: a bar on a terminal, otherwise a line every few seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

EVERY_S = 10.0
"""Seconds between two lines, where there is no terminal."""

Show = Callable[[float], None]
"""Takes the share of a scenario that is done, from 0 to 1."""


@contextmanager
def scenario_progress(
    console: Console, place: str, name: str, now: Callable[[], float] = time.monotonic
) -> Iterator[Show]:
    """Shows a scenario, its share that is done and the time left, until the end of the block.

    Args:
        console: takes the bar, or the lines.
        place: place of the scenario, such as `2/10`.
        name: its name.
        now: clock, in seconds.
    """
    title = f"{place} {name}"
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(title, total=1.0)
            yield lambda share: progress.update(task, completed=share)
        return
    began = told = now()
    console.print(f"{title}: begins", highlight=False)

    def tell(share: float) -> None:
        nonlocal told
        if now() - told < EVERY_S:
            return
        told = now()
        left = f"{(told - began) * (1 / share - 1):,.0f} s left" if share else "time left unknown"
        console.print(f"{title}: {share:.0%} done, about {left}", highlight=False)

    yield tell
    console.print(f"{title}: done in {now() - began:,.0f} s", highlight=False)
