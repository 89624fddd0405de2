"""An activation with a custom backward pass, in two forms, and a network that uses it.

A `torch.autograd.Function` is the form for code made of torch's operations; a custom operator is
the form for a kernel that tracers must not trace, such as one in another language.

Shapes: N rows, D features, K classes.
"""

from typing import Any

import torch
from torch import Tensor, nn


class SwishFunction(torch.autograd.Function):
    """x * sigmoid(x) (Ramachandran et al., 2017), which keeps only x for the backward pass.

    Built from single operations it would keep the sigmoid as well, twice the memory. The ONNX
    exporter sees the operations of `forward` and not this class; TorchScript refuses it.
    """

    @staticmethod
    def forward(features: Tensor) -> Tensor:
        """Applies the activation to any shape, floating point."""
        return features * torch.sigmoid(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Stores the features for `backward`."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Returns the gradient of the input; can be differentiated once more."""
        (features,) = ctx.saved_tensors
        return gradient * _slope(features)


@torch.library.custom_op("flambeau::swish", mutates_args=())
def swish(features: Tensor) -> Tensor:
    """Applies the same activation as a torch operator, to any shape.

    torch.compile and torch.export treat it as one node and get its shape from `_shape_of_swish`. An
    artifact with it would need it in the server too, so an `export_twin` replaces it.
    """
    return features * torch.sigmoid(features)


@swish.register_fake
def _shape_of_swish(features: Tensor) -> Tensor:
    return torch.empty_like(features)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _back(ctx: Any, gradient: Tensor) -> Tensor:
    (features,) = ctx.saved_tensors
    found: Tensor = gradient * _slope(features)
    return found


swish.register_autograd(_back, setup_context=_keep)


def _slope(features: Tensor) -> Tensor:
    """Returns the derivative of the activation."""
    share = torch.sigmoid(features)
    return share * (1 + features * (1 - share))


class Swish(nn.Module):
    """The activation as a layer.

    Args:
        operator: True to use `swish`, False to use `SwishFunction`.
    """

    def __init__(self, operator: bool = False) -> None:
        super().__init__()
        self._operator = operator

    def forward(self, features: Tensor) -> Tensor:
        """Applies the activation to any shape, floating point."""
        found: Tensor = (
            swish(features) if self._operator else SwishFunction.apply(features)  # type: ignore[no-untyped-call]
        )
        return found


class SwishClassifier(nn.Module):
    """Flattened images through two hidden layers with the activation between.

    Args:
        features: numbers of one row, the product of its dimensions.
        hidden: width D of the hidden layers.
        classes: number of classes K.
        operator: True if the activation is the custom operator.
    """

    def __init__(
        self, features: int = 64, hidden: int = 64, classes: int = 10, operator: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(features, hidden),
            Swish(operator),
            nn.Linear(hidden, hidden),
            Swish(operator),
            nn.Linear(hidden, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Maps FP32 [N, ...] to logits [N, K]."""
        logits: Tensor = self.layers(image)
        return logits

    def export_twin(self) -> nn.Module:
        """Returns the same layers with torch's own activation, for formats without Python."""
        return nn.Sequential(
            *(nn.SiLU() if isinstance(layer, Swish) else layer for layer in self.layers)
        )
