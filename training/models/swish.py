"""An activation with a backward pass of its own, and a network that uses it.

Shapes: N rows, D features, K classes.
"""

from typing import Any

import torch
from torch import Tensor, nn


class SwishFunction(torch.autograd.Function):
    """x * sigmoid(x) (Ramachandran et al., 2017), which keeps only x for the backward pass.

    Built from single operations it would keep the sigmoid as well, twice the memory. The ONNX
    exporter sees the operations of `forward` and nothing of this class; TorchScript refuses it.
    """

    @staticmethod
    def forward(features: Tensor) -> Tensor:
        """Any shape, floating point."""
        return features * torch.sigmoid(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keeps what `backward` needs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of the output to that of the input; can be differentiated once more."""
        (features,) = ctx.saved_tensors
        share = torch.sigmoid(features)
        slope: Tensor = share * (1 + features * (1 - share))
        return gradient * slope


class Swish(nn.Module):
    """`SwishFunction` as a layer."""

    def forward(self, features: Tensor) -> Tensor:
        """Any shape, floating point."""
        found: Tensor = SwishFunction.apply(features)  # type: ignore[no-untyped-call]
        return found


class SwishClassifier(nn.Module):
    """Flattened images through two hidden layers with the activation between.

    Args:
        features: numbers of one row, all its dimensions multiplied.
        hidden: width D of the hidden layers.
        classes: number of classes K.
    """

    def __init__(self, features: int = 64, hidden: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(features, hidden),
            Swish(),
            nn.Linear(hidden, hidden),
            Swish(),
            nn.Linear(hidden, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        """FP32 [N, ...] to logits [N, K]."""
        logits: Tensor = self.layers(image)
        return logits

    def export_twin(self) -> nn.Module:
        """The same layers with torch's own activation, for formats that hold no Python."""
        return nn.Sequential(
            *(nn.SiLU() if isinstance(layer, Swish) else layer for layer in self.layers)
        )
