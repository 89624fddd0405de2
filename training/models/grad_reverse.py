"""A layer that turns gradients round: what is behind it learns, and what is before it unlearns.

In: features that two heads share, one of which is to tell what the features must not show, such as
the domain that a row comes from (Ganin & Lempitsky, 2015). Out: the same features.

A layer for networks of your own; exporters see that nothing happens to the features.
"""

from typing import Any

import torch
from torch import Tensor, nn


class GradReverseFunction(torch.autograd.Function):
    """The identity, whose gradient comes back times -scale."""

    @staticmethod
    def forward(features: Tensor, scale: float) -> Tensor:
        """Any shape, floating point."""
        return features.view_as(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        """Keeps what `backward` needs."""
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of the features; the scale has none."""
        return -ctx.scale * gradient, None


class GradReverse(nn.Module):
    """The same as a layer, before the head whose question is to become unanswerable.

    Args:
        scale: how strongly what is before it unlearns; above 0.

    Raises:
        ValueError: the scale is not above 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"scale is {scale}; give a number above 0, for less is no reversal")
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """Any shape, floating point."""
        found: Tensor = GradReverseFunction.apply(features, self.scale)  # type: ignore[no-untyped-call]
        return found
