"""Observers of a running recipe that may stop it: `training.job`, for the service."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Watcher(Protocol):
    """Receives the progress of a run."""

    @property
    def stop_asked(self) -> bool:
        """True if the run should end after this step, with a checkpoint of it."""

    def begin(self, folder: Path) -> None:
        """Receives the folder of the run, before any work in it."""

    def started(self) -> None:
        """Reports that the run started or resumed: checkpoints from now on are its own."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Reports the end of an epoch, counted from 1; a checkpoint that was due is written.

        Raises:
            StoppedError: the run must end here.
        """

    def promoted(self, text: str) -> None:
        """Receives the outcome for the recipe's alias, with its reason, after a publication."""


class NullWatcher:
    """A watcher that ignores all events."""

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
    """The same watcher in a phase after training: the epoch numbers continue.

    Args:
        watcher: the watcher of the run.
        epochs: the number of epochs before this phase.
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
        """See `Watcher.started`: already called for the training."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `Watcher.end_epoch`."""
        self._watcher.end_epoch(self._epochs + epoch, metrics)

    def promoted(self, text: str) -> None:
        """See `Watcher.promoted`."""
        self._watcher.promoted(text)
