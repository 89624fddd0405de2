"""A moving average of the weights, which is often better than the weights themselves.

In: a model, after every step. Out: the model that is evaluated, saved and published: the average,
or the model itself if the recipe wants none. Norms' statistics are averaged with the weights.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class WeightAverage:
    """The average of one model's weights.

    Args:
        model: the model that is trained.
        share: the share of the average that each step keeps; None for no average.
    """

    def __init__(self, model: nn.Module, share: float | None) -> None:
        self._model = model
        self._average: AveragedModel | None = None
        if share is not None:
            follow = get_ema_multi_avg_fn(share)  # type: ignore[no-untyped-call]
            self._average = AveragedModel(model, multi_avg_fn=follow, use_buffers=True)

    @property
    def evaluated(self) -> nn.Module:
        """The average; the model itself, if there is none."""
        return self._model if self._average is None else self._average.module

    def update(self) -> None:
        """Updates the average after one step of the model."""
        if self._average is not None:
            self._average.update_parameters(self._model)

    def state(self) -> dict[str, Any]:
        """Returns the state that a checkpoint needs beside the evaluated weights."""
        if self._average is None:
            return {}
        averaged = self._average.n_averaged
        return {"trained_weights": self._model.state_dict(), "averaged_steps": averaged}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores a `state`, after the evaluated weights were loaded."""
        if self._average is not None:
            self._model.load_state_dict(saved["trained_weights"])
            self._average.n_averaged.copy_(saved["averaged_steps"])
