"""One batch, as the loop gets it: tensors in the host's memory, or on its device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from model_store.tensors import Array
from training.loading.row_order import Places
from training.recipe.parts.loss_parts import LABELS


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Rows that go through the model together."""

    rows: Places
    """Their places in the split, [N]."""
    inputs: list[Tensor]
    """The model's arguments, each [N, ...]."""
    labels: Tensor
    """[N, ...], as `training.datasets.Split` has them."""
    others: dict[str, Tensor] = field(default_factory=dict)
    """More labels by name, for a sum of losses."""
    counts: bool = True
    """Whether it weighs anything; a rank that has no row of its own runs another's along."""

    @classmethod
    def of(
        cls, rows: Places, inputs: Mapping[str, Array], labels: Mapping[str, Array], counts: bool
    ) -> Self:
        """A batch of arrays, whose memory it shares.

        Args:
            rows: their places in the split, [N].
            inputs: by tensor name, in order, each [N, ...].
            labels: all of them by name, each [N, ...].
            counts: whether it weighs anything.
        """
        others = {name: torch.from_numpy(array) for name, array in labels.items()}
        arguments = [torch.from_numpy(array) for array in inputs.values()]
        return cls(rows, arguments, others.pop(LABELS), others, counts)

    def on(self, device: torch.device) -> Self:
        """The same there; from pinned memory it goes while the processor does something else."""
        if device.type == "cpu":
            return self
        there = partial(Tensor.to, device=device, non_blocking=True)
        inputs = [there(tensor) for tensor in self.inputs]
        others = {name: there(tensor) for name, tensor in self.others.items()}
        return replace(self, inputs=inputs, labels=there(self.labels), others=others)

    def every_labels(self) -> dict[str, Tensor]:
        """All labels by name: `labels`, and the others."""
        return {LABELS: self.labels, **self.others}
