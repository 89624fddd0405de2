"""A layer that reverses gradients: layers after it learn, and layers before it unlearn.

In: features that two heads share, one of which predicts what the features must not show, such as
the domain of a row (Ganin & Lempitsky, 2015). Out: the same features.

A layer for custom networks; exporters see the identity.
"""

from typing import Any

import torch
from torch import Tensor, nn


class GradReverseFunction(torch.autograd.Function):
    """The identity; its gradient is multiplied by -scale."""

    @staticmethod
    def forward(features: Tensor, scale: float) -> Tensor:
        """Returns features of any shape, floating point."""
        return features.view_as(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        """Stores the scale for `backward`."""
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Returns the gradient of the features; the scale has none."""
        return -ctx.scale * gradient, None


class GradReverse(nn.Module):
    """The same as a layer, before the head that the features must make fail.

    Args:
        scale: factor on the reversed gradient; above 0.

    Raises:
        ValueError: the scale is not above 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"scale is {scale}; give a number above 0")
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """Returns features of any shape, floating point."""
        found: Tensor = GradReverseFunction.apply(features, self.scale)  # type: ignore[no-untyped-call]
        return found
