"""Sums of the figures of one epoch's steps; a checkpoint in mid-epoch holds them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from training.distributed.ranks import Ranks
from training.loop.optimization.optimizer_step import Stepped


@dataclass(slots=True)
class EpochFigures:
    """Sums over the steps of an epoch so far."""

    loss: float = 0.0
    """Each step's loss times its weight."""
    weight: float = 0.0
    gradient_norm: float = 0.0
    steps: int = 0
    """Steps whose gradient norm was computed."""
    learning_rate: float = 0.0
    """Learning rate of the last step."""

    def add(self, found: Stepped) -> None:
        """Adds the figures of one step."""
        self.loss += found.loss * found.weight
        self.weight += found.weight
        if found.gradient_norm is not None:
            self.gradient_norm += found.gradient_norm
            self.steps += 1
        self.learning_rate = found.learning_rate

    def metrics(self) -> dict[str, float]:
        """Returns the means, by name."""
        return {
            "train/loss": self.loss / self.weight,
            "train/gradient_norm": self.gradient_norm / self.steps,
            "train/learning_rate": self.learning_rate,
        }

    def summed(self, ranks: Ranks) -> "EpochFigures":
        """Returns the figures with the losses of all ranks; the rest is equal on each of them."""
        loss, weight = ranks.sums(self.loss, self.weight)
        return replace(self, loss=loss, weight=weight)

    def state(self) -> dict[str, Any]:
        """Returns the sums for a checkpoint."""
        return asdict(self)

    @classmethod
    def restored(cls, saved: Mapping[str, Any], ranks: Ranks) -> "EpochFigures":
        """Restores a `state`; only the first rank keeps its sums."""
        found = cls(**saved)
        return found if ranks.is_first else replace(found, loss=0.0, weight=0.0)
