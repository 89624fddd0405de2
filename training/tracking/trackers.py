"""Trackers of the metrics of every epoch: a JSONL file, TensorBoard, and experiment servers.

In: an epoch's metrics by name. Rule: after a resume every epoch occurs exactly once, because
entries past the checkpoint are dropped before the run continues.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from training.recipe.recipe import Recipe
from training.run_folder import PhaseFolder, write_atomically
from training.tracking.experiment_trackers import MlflowTracker, WandbTracker


class Tracker(Protocol):
    """A sink of metrics."""

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of one epoch, counted from 1."""

    def close(self) -> None:
        """Flushes buffered metrics and closes the sink."""


@runtime_checkable
class HistogramTracker(Protocol):
    """A sink that also accepts histograms."""

    def log_histograms(self, epoch: int, values: Mapping[str, Tensor]) -> None:
        """Writes the values at the end of one epoch, counted from 1, as histograms."""


class JsonlTracker:
    """One JSON object per line: `{"epoch": 1, "train/loss": 0.7, ...}`.

    Args:
        path: output file; created if absent.
        epochs_done: number of completed epochs; later ones in the file are dropped.
    """

    def __init__(self, path: Path, epochs_done: int) -> None:
        kept = [line for line in _lines(path) if json.loads(line)["epoch"] <= epochs_done]
        write_atomically(path, "".join(kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._file.write(json.dumps({"epoch": epoch, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """See `Tracker.close`."""
        self._file.close()


class TensorBoardTracker:
    """Event files for `tensorboard --logdir`.

    Args:
        folder: folder of the event files.
        epochs_done: completed epochs; TensorBoard hides later ones of earlier files.
    """

    def __init__(self, folder: Path, epochs_done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if epochs_done == 0:  # existing files belong to an earlier run
            shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder), purge_step=epochs_done + 1)

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()  # a killed run resumes after this epoch, and must have it

    def log_histograms(self, epoch: int, values: Mapping[str, Tensor]) -> None:
        """See `HistogramTracker.log_histograms`."""
        for name, tensor in values.items():
            self._writer.add_histogram(name, tensor, epoch)

    def close(self) -> None:
        """See `Tracker.close`."""
        self._writer.close()


@contextlib.contextmanager
def open_trackers(recipe: Recipe, folder: PhaseFolder, epochs_done: int) -> Iterator[list[Tracker]]:
    """Opens the trackers of a recipe, and closes them in any case."""
    names = recipe.track
    trackers: list[Tracker] = []
    try:
        if "jsonl" in names:
            trackers.append(JsonlTracker(folder.metrics, epochs_done))
        if "tensorboard" in names:
            trackers.append(TensorBoardTracker(folder.tensorboard, epochs_done))
        if "mlflow" in names:
            trackers.append(MlflowTracker(recipe, folder, epochs_done))
        if "wandb" in names:
            trackers.append(WandbTracker(recipe, folder, epochs_done))
        yield trackers
    finally:
        for tracker in trackers:
            tracker.close()


def _lines(path: Path) -> list[str]:
    """Returns the complete lines: a killed run may have left a partial one."""
    if not path.is_file():
        return []
    return [x for x in path.read_text("utf-8").splitlines(keepends=True) if x.endswith("\n")]
