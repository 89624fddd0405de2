"""Magnitude pruning of single weights: the smallest become 0 and stay 0 while the rest learns on.

In: a trained network. Out: the same network, in which a share of each chosen layer's weights is 0.

Rule kept here: a weight that is 0 gets no gradient, so AdamW neither moves it nor remembers
anything about it. There is no mask beside the weights: nothing has to be removed before export,
checkpoints are those of any network, and a resumed run finds the zeros where they were. The
choice is that of `torch.nn.utils.prune.l1_unstructured` (Han et al., 2015).
"""

import contextlib
import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from training.errors import RecipeError
from training.recipe_parts.compression import PrunePart

PRUNABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU)


def zero_smallest(model: nn.Module, part: PrunePart) -> None:
    """Sets the smallest weights of each chosen layer to 0, in place.

    Raises:
        RecipeError: a pattern of `part.layers` fits no layer.
    """
    with torch.no_grad():
        for weight in _weights(chosen_layers(prunable_layers(model), part).values()):
            count = round(weight.numel() * part.amount)
            smallest = weight.abs().flatten().topk(count, largest=False).indices
            weight.view(-1)[smallest] = 0


@contextlib.contextmanager
def zeros_held(model: nn.Module) -> Iterator[None]:
    """While the block lasts, matrices and kernels keep the zeros they have at its start."""
    hooks = []
    for weight in _weights(model.modules()):
        kept = weight.detach() != 0
        if weight.requires_grad and not kept.all():
            hook = partial(_held, kept)
            hooks.append(weight.register_hook(hook))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _held(kept: Tensor, gradient: Tensor) -> Tensor:
    return gradient * kept.to(gradient.device)


def zero_share(model: nn.Module) -> float:
    """The share of all weights of prunable layers that are 0."""
    weights = _weights(prunable_layers(model).values())
    return sum(int((w == 0).sum()) for w in weights) / max(sum(w.numel() for w in weights), 1)


def prunable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers whose weights may become 0, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, PRUNABLE)}


def chosen_layers(layers: Mapping[str, nn.Module], part: PrunePart) -> dict[str, nn.Module]:
    """Those of the layers that a pattern fits, by name or by type.

    Raises:
        RecipeError: there are no layers, or a pattern fits none.
    """
    chosen: dict[str, nn.Module] = {}
    for pattern in part.layers:
        found = {
            name: layer
            for name, layer in layers.items()
            if fnmatch.fnmatchcase(name, pattern) or type(layer).__name__ == pattern
        }
        if not found:
            known = ", ".join(f"{name} ({type(layer).__name__})" for name, layer in layers.items())
            how = "lose whole channels" if part.structured else "be pruned"
            raise RecipeError(
                f"prune.layers: no layer that can {how} fits {pattern!r}; these can: "
                f"{known or 'none of this model'}"
            )
        chosen |= found
    return chosen


def _weights(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Matrices and kernels, each once; biases stay."""
    found: dict[int, nn.Parameter] = {}
    for layer in layers:
        found |= {id(p): p for p in layer.parameters(recurse=False) if p.ndim >= 2}
    return list(found.values())
