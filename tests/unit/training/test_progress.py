"""Progress: a bar on a terminal, one line an epoch elsewhere."""

import io

from rich.console import Console

from tests.unit.training.recipes import recipe
from training.tracking.progress import EpochLines, TerminalBar, open_progress

METRICS = {"train/loss": 0.0612, "val/accuracy": 0.9861}


def shown(console: Console, epochs_done: int = 0) -> str:
    chosen = recipe(train={"epochs": 15})
    with open_progress(console, chosen, rows=100, epochs_done=epochs_done) as progress:
        progress.advance(100)
        progress.end_epoch(epochs_done + 1, METRICS)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_file_gets_one_whole_line_an_epoch() -> None:
    text = shown(Console(file=io.StringIO(), width=20), epochs_done=3)
    assert text.count("\n") == 1
    assert text.startswith("training small  epoch 4/15  ")
    assert text.endswith(" samples/s  loss 0.061  val/accuracy 0.986\n")


def test_a_terminal_gets_a_bar() -> None:
    text = shown(Console(file=io.StringIO(), force_terminal=True, width=120), epochs_done=3)
    assert "training small  epoch 4/15" in text
    assert "epoch 5/15" in text
    assert "━" in text
    assert "loss 0.061  val/accuracy 0.986" in text


def test_the_console_decides() -> None:
    chosen = recipe()
    assert isinstance(open_progress(Console(file=io.StringIO()), chosen, 1, 0), EpochLines)
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(open_progress(terminal, chosen, 1, 0), TerminalBar)
