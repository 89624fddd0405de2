"""Progress: a bar on a terminal, one line an epoch elsewhere."""

import io
import re

import pytest
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
    assert text.endswith(" left  loss 0.061  val/accuracy 0.986\n")


def test_a_terminal_gets_a_bar() -> None:
    text = shown(Console(file=io.StringIO(), force_terminal=True, width=120), epochs_done=3)
    assert "training small  epoch 4/15" in text
    assert "epoch 5/15" in text
    assert "━" in text
    assert "loss 0.061  val/accuracy 0.986" in text


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_line_says_how_long_the_rest_takes_at_the_rate_so_far() -> None:
    file, clock, chosen = io.StringIO(), Clock(), recipe(train={"epochs": 4})
    with open_progress(Console(file=file), chosen, 100, 0, clock=clock) as progress:
        for epoch, seconds in enumerate([10, 30, 20, 20], start=1):
            clock.now_s += seconds  # validation and checkpoints count too
            progress.advance(100)
            progress.end_epoch(epoch, METRICS)
    lines = [line.split("  ")[2:4] for line in file.getvalue().splitlines()]
    assert lines == [
        ["10 samples/s", "0:00:30 left"],
        ["3 samples/s", "0:00:40 left"],
        ["5 samples/s", "0:00:20 left"],
        ["5 samples/s", "0:00:00 left"],
    ]


def test_rows_of_before_a_resume_are_no_work_of_this_run() -> None:
    file, clock, chosen = io.StringIO(), Clock(), recipe(train={"epochs": 4})
    with open_progress(Console(file=file), chosen, 100, 1, in_epoch=80, clock=clock) as progress:
        clock.now_s += 2
        progress.advance(20)
        progress.end_epoch(2, METRICS)
    assert "epoch 2/4  10 samples/s  0:00:20 left  loss" in file.getvalue()


def test_the_bar_says_how_long_the_rest_takes() -> None:
    file, clock, chosen = io.StringIO(), Clock(), recipe(train={"epochs": 4})
    console = Console(file=file, force_terminal=True, no_color=True, width=120)
    with open_progress(console, chosen, 100, 1, in_epoch=50, clock=clock) as progress:
        assert "-:--:-- left" in file.getvalue()  # nothing is known yet
        for _ in range(3):
            progress.advance(10)
            clock.now_s += 4
    assert "0:01:28 left" in file.getvalue()  # 220 rows at 20 in 8 s


def test_the_console_decides() -> None:
    chosen = recipe()
    assert isinstance(open_progress(Console(file=io.StringIO()), chosen, 1, 0), EpochLines)
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(open_progress(terminal, chosen, 1, 0), TerminalBar)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (50, "epoch 2/20  0:00:19 left  val/accuracy 0.986"),
        (80, "digits-cnn  epoch 2/20  1,000 samples/s  0:00:19 left  val/accuracy 0.986"),
        (100, "training digits-cnn  epoch 2/20  1,000 samples/s  0:00:19 left  loss 0.061  "
              "val/accuracy 0.986"),
    ],
)  # fmt: skip
def test_the_bar_is_one_whole_line_at_any_width(width: int, shown: str) -> None:
    file, clock = io.StringIO(), Clock()
    chosen = recipe(train={"epochs": 20}).model_copy(update={"name": "digits-cnn"})
    console = Console(file=file, force_terminal=True, no_color=True, width=width)
    with open_progress(console, chosen, 1000, 0, clock=clock) as progress:
        for _ in range(10):
            clock.now_s += 0.1
            progress.advance(100)
        progress.end_epoch(1, METRICS)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\n", "\r").split("\r")
    line = next(text for text in reversed(last) if text.strip()).rstrip()
    assert line == shown


def test_a_wide_terminal_has_room_for_the_bar() -> None:
    text = shown(Console(file=io.StringIO(), force_terminal=True, width=140), epochs_done=3)
    assert "━" * 10 in text
