"""Metrics on disk: every epoch once, whatever happened in between."""

import json
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.unit.training.recipes import DATA, recipe
from training.run_folder import RunFolder
from training.tracking.trackers import open_trackers


def run_folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path, recipe(), DATA)
    folder.path.mkdir(exist_ok=True)
    return folder


def log_epochs(folder: RunFolder, epochs: range, names: tuple[str, ...], value: float) -> None:
    with open_trackers(recipe(track=names), folder, epochs.start - 1) as trackers:
        for epoch in epochs:
            for tracker in trackers:
                tracker.log(epoch, {"val/loss": value})


def jsonl(folder: RunFolder) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return [(line["epoch"], line["val/loss"]) for line in lines]


def test_epochs_after_the_checkpoint_are_written_anew(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    log_epochs(folder, range(1, 4), ("jsonl",), 0.1)
    with folder.metrics.open("a") as file:
        file.write('{"epoch": 4, "val/l')  # the process died here
    log_epochs(folder, range(3, 5), ("jsonl",), 0.2)
    assert jsonl(folder) == [(1, 0.1), (2, 0.1), (3, 0.2), (4, 0.2)]


def test_a_run_that_starts_anew_forgets_the_old_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    for value in (0.1, 0.2):
        log_epochs(folder, range(1, 3), ("jsonl", "tensorboard"), value)
    assert jsonl(folder) == [(1, 0.2), (2, 0.2)]
    assert len(list(folder.tensorboard.iterdir())) == 1


def scalars(folder: RunFolder) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder.tensorboard))
    events.Reload()
    return [(event.step, round(event.value, 3)) for event in events.Scalars("val/loss")]


def test_tensorboard_has_every_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path)
    log_epochs(folder, range(1, 4), ("tensorboard",), 0.1)
    # A file is named by its second and a number: within one, the tenth would come before the ninth.
    later_s = time.time() + 1
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time", lambda: later_s)
    log_epochs(folder, range(3, 5), ("tensorboard",), 0.2)
    assert scalars(folder) == [(1, 0.1), (2, 0.1), (3, 0.2), (4, 0.2)]


@pytest.mark.parametrize("name", ["jsonl", "tensorboard"])
def test_an_epoch_is_on_disk_as_soon_as_it_is_logged(tmp_path: Path, name: str) -> None:
    folder = run_folder(tmp_path)
    with open_trackers(recipe(track=[name]), folder, 0) as (tracker,):
        tracker.log(1, {"val/loss": 0.5})
        assert (jsonl(folder) if name == "jsonl" else scalars(folder)) == [(1, 0.5)]
