"""Who looks on while a recipe runs, and may have it stopped: `training.job`, for the service."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Watcher(Protocol):
    """Told how far a run is."""

    @property
    def stop_asked(self) -> bool:
        """Whether the run is to end after this step, with a checkpoint of it."""

    def begin(self, folder: Path) -> None:
        """The run works in this folder."""

    def started(self) -> None:
        """It has begun or goes on: whatever checkpoint is there from now on is its own."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """An epoch, counted from 1, is over, and its checkpoint written if one was due.

        Raises:
            StoppedError: the run is to end here.
        """

    def promoted(self, text: str) -> None:
        """A version is published: what became of the recipe's alias, and why."""


class NullWatcher:
    """Nobody looks on."""

    stop_asked = False

    def begin(self, folder: Path) -> None:
        """See `Watcher.begin`."""

    def started(self) -> None:
        """See `Watcher.started`."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `Watcher.end_epoch`."""

    def promoted(self, text: str) -> None:
        """See `Watcher.promoted`."""


class LaterPhase:
    """The same watcher in a phase behind the training: the epochs are counted on.

    Args:
        watcher: of the run.
        epochs: that came before.
    """

    def __init__(self, watcher: Watcher, epochs: int) -> None:
        self._watcher = watcher
        self._epochs = epochs

    @property
    def stop_asked(self) -> bool:
        """See `Watcher.stop_asked`."""
        return self._watcher.stop_asked

    def begin(self, folder: Path) -> None:
        """See `Watcher.begin`."""
        self._watcher.begin(folder)

    def started(self) -> None:
        """See `Watcher.started`: told of the training already."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `Watcher.end_epoch`."""
        self._watcher.end_epoch(self._epochs + epoch, metrics)

    def promoted(self, text: str) -> None:
        """See `Watcher.promoted`."""
        self._watcher.promoted(text)
