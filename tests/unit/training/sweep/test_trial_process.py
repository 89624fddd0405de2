"""A trial in a process of its own, as its search hears it."""

import time
from multiprocessing.util import Finalize
from pathlib import Path

from tests.unit.training.recipes import recipe
from training.sweep.trial_process import TrialFailed, TrialProcess


def fail_and_leave_a_mark(mark: str) -> None:
    def leave() -> None:
        time.sleep(0.1)  # longer than it takes to hear the answer
        Path(mark).touch()

    Finalize(None, leave, exitpriority=1)
    raise ValueError("there are no rows")


def test_a_trial_that_has_answered_gives_back_what_would_outlive_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data = {"target": f"{__name__}:fail_and_leave_a_mark", "args": {"mark": str(mark)}}
    trial = TrialProcess(recipe(data=data), tmp_path, tmp_path / "log", threads=1, memory_gib=8)
    told = trial.hear()
    trial.end()
    assert isinstance(told, TrialFailed)
    assert "there are no rows" in told.reason
    assert mark.exists()
