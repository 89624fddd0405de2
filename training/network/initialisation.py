"""Initialises the layers of a new network, by type, as the recipe says."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.errors import RecipeError
from training.recipe.parts.model_parts import Initialisation, InitPart

DEVIATION = 0.02
"""Standard deviation of `normal` and `trunc_normal`, as in BERT and GPT-2."""
TYPES: dict[str, tuple[type[nn.Module], ...]] = {
    "conv": (nn.modules.conv._ConvNd,),
    "linear": (nn.Linear,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "recurrent": (nn.RNNBase,),
}
FILL: dict[Initialisation, Callable[[Tensor], object]] = {
    "kaiming_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "xavier_normal": nn.init.xavier_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "normal": lambda weight: nn.init.normal_(weight, std=DEVIATION),
    "trunc_normal": lambda weight: nn.init.trunc_normal_(weight, std=DEVIATION),
    "zeros": nn.init.zeros_,
}


def initialise(network: nn.Module, part: InitPart) -> None:
    """Fills matrices and kernels from the current random state, and biases with 0.

    Args:
        network: changed in place.
        part: the recipe's part.

    Raises:
        RecipeError: the network has no layer of a type that the recipe names.
    """
    for kind, types in TYPES.items():
        chosen: Initialisation | None = getattr(part, kind)
        if chosen is None:
            continue
        layers = [layer for layer in network.modules() if isinstance(layer, types)]
        if not layers:
            has = ", ".join(sorted({type(m).__name__ for m in network.modules()}))
            raise RecipeError(f"model.init names {kind}, and the model has none; it has {has}")
        with torch.no_grad():
            for layer in layers:
                for name, parameter in layer.named_parameters(recurse=False):
                    is_weight = parameter.ndim >= 2 and "bias" not in name
                    FILL[chosen if is_weight else "zeros"](parameter)
