"""One batch of the training loop: tensors in the host's memory, or on the device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from flambeau.protocol.tensors import Array
from training.loading.row_order import Places
from training.recipe.parts.loss_parts import LABELS


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Rows of one forward pass."""

    rows: Places
    """Their places in the split, [N]."""
    inputs: list[Tensor]
    """The model's arguments, each [N, ...]."""
    labels: Tensor
    """[N, ...], as in `training.datasets.Split`."""
    others: dict[str, Tensor] = field(default_factory=dict)
    """Further labels by name, for a sum of losses."""
    counts: bool = True
    """True if it has weight; a rank without a row of its own runs another rank's row."""

    @classmethod
    def of(
        cls, rows: Places, inputs: Mapping[str, Array], labels: Mapping[str, Array], counts: bool
    ) -> Self:
        """Makes a batch of arrays, whose memory it shares.

        Args:
            rows: their places in the split, [N].
            inputs: by tensor name, in order, each [N, ...].
            labels: all of them by name, each [N, ...].
            counts: True if the batch has weight.
        """
        others = {name: torch.from_numpy(array) for name, array in labels.items()}
        arguments = [torch.from_numpy(array) for array in inputs.values()]
        return cls(rows, arguments, others.pop(LABELS), others, counts)

    def on(self, device: torch.device) -> Self:
        """Returns the batch on a device; copies from pinned memory are asynchronous."""
        if device.type == "cpu":
            return self
        there = partial(Tensor.to, device=device, non_blocking=True)
        inputs = [there(tensor) for tensor in self.inputs]
        others = {name: there(tensor) for name, tensor in self.others.items()}
        return replace(self, inputs=inputs, labels=there(self.labels), others=others)

    def every_labels(self) -> dict[str, Tensor]:
        """Returns all labels by name: `labels`, and the others."""
        return {LABELS: self.labels, **self.others}
