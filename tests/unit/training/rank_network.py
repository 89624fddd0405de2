"""A network with dropout whose second rank can be killed, and rows to train it on."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn

CLASSES, ROWS = 3, 77


class RankNetwork(nn.Module):
    """Two layers. The second rank dies once, unless `marker` is there.

    Args:
        dropout: share of activations.
        batch_norm: whether its norm is one over all that a row has, so that one row is enough.
        marker: made before it dies; None if it is to live.
        killed_at: the call in training, from 1, at which it dies; an epoch has four batches.
    """

    def __init__(
        self,
        dropout: float = 0.0,
        batch_norm: bool = False,
        marker: str | None = None,
        killed_at: int = 10,
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 15), nn.ReLU(), nn.Dropout(dropout), nn.Linear(15, 7), nn.BatchNorm1d(7)
        )
        self.head = nn.Linear(7, CLASSES)
        if batch_norm:
            self.body[4] = nn.Sequential(nn.Unflatten(1, (1, 7)), nn.BatchNorm1d(1), nn.Flatten())
        elif marker is None:  # what is compared with one process: batch norm would see other rows
            self.body[4] = nn.LayerNorm(7)
        self._marker, self._calls, self._killed_at = marker, 0, killed_at

    def forward(self, rows: Tensor) -> Tensor:
        """[N, 6] to [N, 3]."""
        if self.training and self._marker and dist.is_initialized() and dist.get_rank() == 1:
            self._calls += 1
            if self._calls == self._killed_at and not Path(self._marker).exists():
                Path(self._marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.head(self.body(rows).relu())  # type: ignore[no-any-return]


def rows(seed: int) -> dict[str, Any]:
    """Splits whose last batch is short."""

    def split(number: int) -> tuple[dict[str, Any], Any]:
        random = np.random.default_rng((seed, number))
        labels = random.integers(0, CLASSES, ROWS)
        inputs = random.random((ROWS, 6), np.float32)
        inputs[np.arange(ROWS), labels] += 1
        return {"rows": inputs}, labels

    return {name: split(place) for place, name in enumerate(("train", "validation", "test"))}
