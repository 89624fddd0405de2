"""Saves and restores the checkpoints of one phase of a run.

In: the progress of the phase, and every object with a state. Out: checkpoints.

Rule: a checkpoint in mid-epoch also holds the figures of the epoch's steps so far, so the figures
of an interrupted epoch equal those of an uninterrupted one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from training.distributed.ranks import Ranks
from training.errors import StoppedError
from training.loop.epoch_figures import EpochFigures
from training.loop.optimization.optimizer_step import Stepper
from training.loop.shared_checkpoint import SharedCheckpoints
from training.loop.train_state import TrainState, within_epoch
from training.network.debugging import Watch
from training.recipe.recipe import Recipe
from training.tracking.progress import say
from training.watcher import Watcher


@dataclass(slots=True)
class RunCheckpoints:
    """All objects of one phase that have a state."""

    recipe: Recipe
    checkpoints: SharedCheckpoints
    evaluated: nn.Module
    """The model whose weights are saved: the average, if there is one."""
    optimizer: torch.optim.Optimizer
    stepper: Stepper
    watch: Watch
    watcher: Watcher
    figures: EpochFigures = field(default_factory=EpochFigures)
    """Figures of the current epoch."""

    @property
    def _ranks(self) -> Ranks:
        return self.stepper.replica.ranks

    def begin(self, resume: bool, console: Console) -> TrainState:
        """Returns the state of the run: its last checkpoint, or the beginning.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        state = self._begun(resume, console)
        if self._ranks.is_first:
            self.watcher.started()
        return state

    def end_step(self, state: TrainState, in_epoch: int) -> None:
        """Writes a checkpoint in mid-epoch, if one is due or a stop was requested.

        Args:
            state: the state at the start of the epoch, or after resuming in it.
            in_epoch: finished steps of the epoch.

        Raises:
            CheckpointError: it cannot be written.
            StoppedError: a stop was requested.
        """
        every, step = self.recipe.checkpoint.every_steps, state.step - state.in_epoch + in_epoch
        stopping = self._ranks.any_of(self.watcher.stop_asked)
        if stopping or (every is not None and step % every == 0):
            self.stepper.check_weights()
            self.checkpoints.save_weights(self.evaluated, state.epoch, in_epoch)
            self._save(within_epoch(state, in_epoch))
        if stopping:
            raise StoppedError(
                f"stopped after step {in_epoch} of epoch {state.epoch + 1}; resume to continue"
            )

    def end_epoch(self, state: TrainState) -> bool:
        """Writes a checkpoint, if one is due.

        Returns:
            True if a stop was requested.

        Raises:
            CheckpointError: it cannot be written.
        """
        stopping = self._ranks.any_of(self.watcher.stop_asked)
        due = stopping or state.finished
        due = due or state.epoch % self.recipe.checkpoint.every_epochs == 0
        if due or state.best_epoch == state.epoch:
            self.checkpoints.save_weights(self.evaluated, state.epoch)
        if due:
            self._save(state)
        return stopping

    def end_figures(self) -> dict[str, float]:
        """Returns the metrics of the epoch's steps, of all ranks, and resets them.

        Raises:
            DivergedError: the last step left weights that are not finite.
        """
        self.stepper.check_weights()
        found, self.figures = self.figures.summed(self._ranks), EpochFigures()
        return found.metrics()

    def _begun(self, resume: bool, console: Console) -> TrainState:
        path = self.checkpoints.path
        if resume and self.checkpoints.exists:
            state = self.checkpoints.load(self.evaluated, self.optimizer, self._restore)
            say(console, _where(state, path))
            return state
        if resume:
            say(console, f"no checkpoint in {path} yet; starting with epoch 1")
        self.checkpoints.clear()
        return TrainState()

    def _save(self, state: TrainState) -> None:
        seen = {"figures": self.figures.summed(self._ranks).state(), "watch": self.watch.state()}
        beside = {**self.stepper.state(), "epoch_so_far": seen}
        self.checkpoints.save_state(state, self.optimizer, beside, self.recipe.checkpoint.keep)

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.stepper.restore(saved)
        seen = saved.get("epoch_so_far")
        if seen is not None:
            self.figures = EpochFigures.restored(seen["figures"], self._ranks)
            self.watch.restore(seen["watch"])


def _where(state: TrainState, path: Path) -> str:
    """Returns a message that tells where a run resumes."""
    if state.finished:
        return f"trained already, to the end of epoch {state.epoch}: its weights are in {path}"
    steps = f" and {state.in_epoch} steps" if state.in_epoch else ""
    return f"resuming after epoch {state.epoch}{steps} from {path}"
