"""A run that is cut off at any step, and resumed, ends with the bits of one that is not."""

import fcntl
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.training.recipes import DATA
from tests.unit.training.row_sets import Dropping, lazy_document, losses, run, weights
from training.errors import StoppedError
from training.loop.checkpoint import CheckpointFolder
from training.loop.train_state import TrainState
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

EPOCH_STEPS = 6
"""42 rows in windows of 8."""
STREAM = {"data": "stream", "train": {"steps_per_epoch": EPOCH_STEPS}}


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(lazy_document(**changes))


class CutOffError(Exception):
    """Stands for a kill."""


class Cutting:
    """Ends the run after some steps, by a kill or by asking."""

    def __init__(self, step: int, ask: bool = False) -> None:
        self._left, self._ask = step, ask

    @property
    def stop_asked(self) -> bool:
        self._left -= 1
        if self._left == 0 and not self._ask:
            raise CutOffError
        return self._left <= 0

    def begin(self, folder: Path) -> None:
        raise AssertionError("the pipeline tells that")

    def started(self) -> None:
        pass

    def end_epoch(self, epoch: int, metrics: Any) -> None:
        pass


CASES: dict[str, dict[str, Any]] = {
    "map": {},
    "stream": STREAM,
    "short": {
        "train": {"steps_per_epoch": 4, "ema": None},
        "schedule": {"plateau": {"patience": 0, "threshold": 0.9}},
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, TrainState]]:
    """The folder of a case's runs, with one that was not cut off, and how that one ended."""

    @functools.cache
    def find(case: str) -> tuple[Path, TrainState]:
        path = tmp_path_factory.mktemp(case)
        return path, run(path, recipe(**CASES[case])).state

    return find


@pytest.mark.parametrize(
    ("case", "step"),
    [("map", 1), ("map", 3), ("map", 6), ("map", 9), ("stream", 9), ("short", 3)],
)
def test_a_run_cut_off_at_a_step_goes_on_with_the_same_bits(
    case: str,
    step: int,
    tmp_path: Path,
    whole: Callable[[str], tuple[Path, TrainState]],
) -> None:
    chosen, (undisturbed, expected) = recipe(**CASES[case]), whole(case)
    with pytest.raises(CutOffError):
        run(tmp_path, chosen, Cutting(step))
    assert run(tmp_path, chosen, resume=True).state == expected
    assert losses(tmp_path, chosen) == losses(undisturbed, chosen)
    assert weights(tmp_path, chosen) == weights(undisturbed, chosen)


@pytest.mark.parametrize("step", [2, EPOCH_STEPS, EPOCH_STEPS + 3])
def test_a_run_that_is_asked_to_stop_stops_behind_the_step(
    step: int, tmp_path: Path, whole: Callable[[str], tuple[Path, TrainState]]
) -> None:
    chosen, (undisturbed, expected) = recipe(checkpoint={"every_steps": None}), whole("map")
    with pytest.raises(StoppedError, match=r"stopped after step \d of epoch \d; resume"):
        run(tmp_path, chosen, Cutting(step, ask=True))
    assert run(tmp_path, chosen, resume=True).state == expected
    assert losses(tmp_path, chosen) == losses(undisturbed, chosen)


@pytest.fixture(scope="module")
def trainer() -> Iterator[Any]:
    """A process that trains what it is told."""
    program = [sys.executable, "-m", "tests.unit.training.row_sets"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, **pipes) as process:
        yield process


@pytest.mark.parametrize(("case", "workers", "lines"), [("map", 2, 11), ("stream", 0, 5)])
def test_a_process_killed_at_a_step_goes_on_with_the_same_bits(
    case: str,
    workers: int,
    lines: int,
    tmp_path: Path,
    trainer: Any,
    whole: Callable[[str], tuple[Path, TrainState]],
) -> None:
    """It goes on with other workers than it was killed with, too."""
    chosen, (undisturbed, expected) = recipe(**CASES[case]), whole(case)
    killed, others = (with_workers(chosen, count) for count in (workers, 2 - workers))
    print(json.dumps([str(tmp_path), killed.document()]), file=trainer.stdin, flush=True)
    process = int(trainer.stdout.readline())
    for _ in range(lines):
        assert trainer.stdout.readline() == "step\n"
    os.kill(process, signal.SIGKILL)
    with (RunFolder(tmp_path, chosen, DATA).path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the last of its workers
    assert CheckpointFolder(RunFolder(tmp_path, chosen, DATA).checkpoints).exists
    assert run(tmp_path, others, resume=True).state == expected
    assert losses(tmp_path, chosen) == losses(undisturbed, chosen)
    assert weights(tmp_path, chosen) == weights(undisturbed, chosen)


def with_workers(chosen: Recipe, workers: int) -> Recipe:
    return chosen.model_copy(update={"data": chosen.data.model_copy(update={"workers": workers})})


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_run_takes_deterministic_algorithms_unless_told(
    deterministic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    forward = Dropping.forward

    def look(self: Dropping, x: Tensor) -> Tensor:
        seen.add(torch.are_deterministic_algorithms_enabled())
        return forward(self, x)

    monkeypatch.setattr(Dropping, "forward", look)
    chosen = recipe(train={"epochs": 1, "ema": None, "deterministic": deterministic})
    run(tmp_path, chosen)
    (line,) = RunFolder(tmp_path, chosen, DATA).metrics.read_text().splitlines()
    assert 0 < json.loads(line)["train/wait_share"] < 1
    assert seen == {deterministic}


def test_the_last_checkpoints_and_the_best_stay(tmp_path: Path) -> None:
    chosen = recipe(checkpoint={"every_steps": 4, "every_epochs": 1, "keep": 3})
    state = run(tmp_path, chosen).state
    last = ["epoch-000002-step-00000004", "epoch-000002.safetensors", "epoch-000003.safetensors"]
    best = f"epoch-{state.best_epoch:06d}.safetensors"
    found = [name.replace("4.safetensors", "4") for name in weights(tmp_path, chosen)]
    assert sorted(found) == sorted({*last, best})
