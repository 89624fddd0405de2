"""Checkpoints of a run that several processes share: all gather, the first one writes.

Rules: the files are those of a run of one process (`training.loop.checkpoint`), so a run may resume
with any number of processes. They also hold the random states of the other ranks; a rank without
one is seeded anew.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.distributed.replica import Replica, WholeOptimizer, whole_tensors
from training.loop.checkpoint import CheckpointFolder, random_state, restore_random_state
from training.loop.train_state import TrainState

OTHERS = "random_of_others"
"""Key of the random states of the ranks from the second on."""


class SharedCheckpoints:
    """The checkpoints of one run, for one of its ranks. All ranks must call every method.

    Args:
        path: the folder, which all ranks can read.
        replica: the model of this rank.
        seed: the seed of the run.
    """

    def __init__(self, path: Path, replica: Replica, seed: int) -> None:
        self._folder, self._replica, self._seed = CheckpointFolder(path), replica, seed
        self._ranks = replica.ranks
        self.path = path

    @property
    def exists(self) -> bool:
        """See `CheckpointFolder.exists`; the answer of rank 0."""
        return self._ranks.decided(self._folder.exists)

    def clear(self) -> None:
        """Removes all checkpoints, for a run that starts anew."""
        if self._ranks.is_first:
            self._folder.clear()
        self._ranks.seed(self._seed, epoch=0)

    def save_weights(self, model: nn.Module, epoch: int, in_epoch: int = 0) -> None:
        """See `CheckpointFolder.save_weights`."""
        whole = self._replica.whole(model)
        if self._ranks.is_first:
            self._folder.save_weights(whole, epoch, in_epoch)

    def save_state(
        self,
        state: TrainState,
        optimizer: torch.optim.Optimizer,
        beside: Mapping[str, Any],
        keep: int,
    ) -> None:
        """See `CheckpointFolder.save_state`; returns once the checkpoint is written."""
        others = self._ranks.gather(random_state())[1:]
        memory = optimizer.state_dict()
        if self._replica.is_sharded:
            memory = whole_tensors(memory)
        if self._ranks.is_first:
            beside = {**beside, OTHERS: others} if others else beside
            self._folder.save_state(state, WholeOptimizer(optimizer, memory), beside, keep)
        self._ranks.decided(None)  # no rank continues before the checkpoint is written

    def load(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        restore: Callable[[Mapping[str, Any]], None],
    ) -> TrainState:
        """See `CheckpointFolder.load`."""
        others: list[Any] = []

        def restore_all(saved: Mapping[str, Any]) -> None:
            others.extend(saved.get(OTHERS, ()))
            restore(saved)

        ranks = self._ranks
        state = self._folder.load(
            self._replica.plain(model), WholeOptimizer(optimizer), restore_all
        )
        self._replica.spread()
        ranks.seed(self._seed, state.epoch)
        if 0 < ranks.rank <= len(others):
            restore_random_state(others[ranks.rank - 1])
        return state
