"""Magnitude pruning of single weights: the smallest become 0 and stay 0 while others still train.

In: a trained network. Out: the same network, in which a share of each chosen layer's weights is 0.

Rule: a weight that is 0 gets no gradient, so AdamW neither updates it nor keeps moments of it;
earlier moments are cleared with the weight. There is no separate mask: nothing has to be removed
before export, checkpoints are those of any network, and a resumed run finds the same zeros. The
choice of weights is that of
`torch.nn.utils.prune.l1_unstructured` (Han et al., 2015).
"""

import contextlib
import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from rich.console import Console
from torch import Tensor, nn

from training.errors import RecipeError
from training.network.preprocessing import network_of
from training.recipe.parts.compression import PrunePart
from training.recipe.recipe import Recipe
from training.tracking.progress import say

PRUNABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.GRU)


def zero_smallest(model: nn.Module, part: PrunePart) -> None:
    """Sets the smallest weights of each chosen layer to 0, in place.

    Raises:
        RecipeError: a pattern of `part.layers` matches no layer.
    """
    with torch.no_grad():
        for weight in _weights(chosen_layers(prunable_layers(model), part).values()):
            count = round(weight.numel() * part.amount)
            smallest = weight.abs().flatten().topk(count, largest=False).indices
            weight.view(-1)[smallest] = 0


@contextlib.contextmanager
def zeros_held(model: nn.Module) -> Iterator[None]:
    """Holds the zeros that matrices and kernels have at the start of the block."""
    hooks = []
    for weight in _weights(model.modules()):
        kept = weight.detach() != 0
        if kept.all():
            continue
        learns = weight.requires_grad  # a frozen weight keeps its zeros after unfreezing
        hook = partial(_held, kept)
        hooks.append(weight.requires_grad_().register_hook(hook))  # type: ignore[no-untyped-call]
        weight.requires_grad_(learns)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class MidwayPruning:
    """Pruning within the training, if the recipe has `prune.at`.

    Args:
        recipe: the run.
        epoch_steps: steps of each epoch.
        model: the model that is trained.
        average: the average of its weights, or the same model.
        optimizer: its optimizer; the state of pruned weights is cleared.
        console: shows the pruned share.

    Raises:
        RecipeError: the training ends before the pruning.
    """

    def __init__(
        self,
        recipe: Recipe,
        epoch_steps: int,
        model: nn.Module,
        average: nn.Module,
        optimizer: torch.optim.Optimizer,
        console: Console,
    ) -> None:
        self._part, epochs = recipe.prune, recipe.train.epochs
        self._model, self._average, self._optimizer = model, average, optimizer
        self._console = console
        self._step = None if self._part is None else self._part.first_step(epochs, epoch_steps)
        self._stack = contextlib.ExitStack()
        if self._step is not None and not 0 < self._step < epochs * epoch_steps:
            assert self._part is not None, "it names the step"
            raise RecipeError(
                f"prune.at is {self._part.at}, and the training has {epochs * epoch_steps} steps, "
                f"{epoch_steps} an epoch; name a moment between its first step and its last"
            )

    def go_on(self, step: int) -> None:
        """Holds the existing zeros, if this step comes after the pruning."""
        if self._step is not None and step > self._step:
            self._stack.enter_context(zeros_held(self._model))

    def before_step(self, step: int) -> None:
        """Prunes the weights, if this step, counted from 0, is the first without them."""
        if self._part is None or step != self._step:
            return
        network = network_of(self._model)
        zero_smallest(network, self._part)
        averages = self._average.parameters()
        with torch.no_grad():
            for weight, averaged in zip(self._model.parameters(), averages, strict=True):
                gone = weight == 0
                if weight.ndim < 2 or not gone.any():
                    continue
                averaged[gone] = 0
                for kept in self._optimizer.state.get(weight, {}).values():
                    if isinstance(kept, Tensor) and kept.shape == weight.shape:
                        kept[gone] = 0
        if isinstance(self._optimizer, torch.optim.LBFGS):  # its state has all weights in one
            self._optimizer.state.clear()
        self._stack.enter_context(zeros_held(self._model))
        say(self._console, in_words(network))

    def close(self) -> None:
        """Lets all weights train again."""
        self._stack.close()


def in_words(model: nn.Module) -> str:
    """Returns a message with the share of pruned weights."""
    return f"pruned: {100 * zero_share(model):.1f} % of the weights of all layers are 0"


def _held(kept: Tensor, gradient: Tensor) -> Tensor:
    if gradient.is_sparse:  # of an embedding, which is not pruned
        return gradient
    return gradient * kept.to(gradient.device)


def zero_share(model: nn.Module) -> float:
    """Returns the share of zeros in the weights of prunable layers."""
    weights = _weights(prunable_layers(model).values())
    return sum(int((w == 0).sum()) for w in weights) / max(sum(w.numel() for w in weights), 1)


def prunable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the layers that can be pruned, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, PRUNABLE)}


def chosen_layers(layers: Mapping[str, nn.Module], part: PrunePart) -> dict[str, nn.Module]:
    """Returns the layers that match a pattern, by name or by type.

    Raises:
        RecipeError: there are no layers, or a pattern matches none.
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
    """Returns matrices and kernels, each once; biases are not pruned."""
    found: dict[int, nn.Parameter] = {}
    for layer in layers:
        found |= {id(p): p for p in layer.parameters(recurse=False) if p.ndim >= 2}
    return list(found.values())
