"""Functions in a process of their own: what comes back, and how each ends."""

import os
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from training.errors import IsolationError
from training.isolated_run import run_isolated

MEMORY_BYTES = 8 * 2**30


def double(number: int) -> int:
    return 2 * number


def leave_a_mark_at_the_end(mark: Path) -> None:
    def leave() -> None:
        time.sleep(0.1)  # longer than it takes to hear the answer
        mark.touch()

    Finalize(None, leave, exitpriority=1)


def die() -> None:
    os.write(2, b"first words\nlast words\n")
    os._exit(7)


def sleep() -> None:
    time.sleep(60)


def isolated(call: Callable[..., object], *arguments: object, time_limit_s: float = 60.0) -> object:
    return run_isolated(
        call, *arguments, time_limit_s=time_limit_s, memory_limit_bytes=MEMORY_BYTES
    )


def test_it_gives_what_the_function_gave() -> None:
    assert isolated(double, 21) == 42


def test_what_has_answered_gives_back_what_would_outlive_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    isolated(leave_a_mark_at_the_end, mark)
    assert mark.exists()


def test_the_dead_are_told_of_with_their_last_words() -> None:
    with pytest.raises(IsolationError, match="ended with status 7: last words"):
        isolated(die)


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(IsolationError, match=r"longer than 0\.5 s"):
        isolated(sleep, time_limit_s=0.5)
