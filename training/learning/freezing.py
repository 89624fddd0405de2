"""Holds parameters as they are for a whole run, or for its first epochs.

A frozen batch norm is kept in evaluation mode: its statistics are parameters in all but name.
"""

import fnmatch

from torch import nn

from training.model_names import matching_any, named_layers, named_parameters
from training.recipe_parts.model_parts import FreezePart


class Freezing:
    """What a recipe freezes of one model.

    Args:
        model: the model.
        part: the recipe's.

    Raises:
        RecipeError: a pattern fits no parameter.
    """

    def __init__(self, model: nn.Module, part: FreezePart) -> None:
        parameters = named_parameters(model)
        names = matching_any(part.freeze, parameters, "model.freeze")
        self._part = part
        self._parameters = [parameters[n] for n in names if parameters[n].requires_grad]
        frozen = {id(parameters[name]) for name in names}
        self._norms = [
            layer
            for name, layer in named_layers(model).items()
            if isinstance(layer, nn.modules.batchnorm._NormBase)
            and _is_frozen(name, layer, part, frozen)
        ]
        if part.unfreeze_at is None:
            self._hold(True)  # an optimizer that is built now leaves them out

    def begin_epoch(self, epoch: int) -> None:
        """Called behind `model.train()`.

        Args:
            epoch: its number, from 1.
        """
        until = self._part.unfreeze_at
        self._hold(until is None or epoch < until.epoch)

    def release(self) -> None:
        """Lets everything learn again, in a phase behind this one."""
        for parameter in self._parameters:
            parameter.requires_grad_(True)

    def _hold(self, held: bool) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(not held)
        if held:
            for norm in self._norms:
                norm.eval()


def _is_frozen(name: str, norm: nn.Module, part: FreezePart, frozen: set[int]) -> bool:
    """Whether all its parameters are; one without any is, if a pattern fits its statistics."""
    own = [id(parameter) for parameter in norm.parameters(recurse=False)]
    if own:
        return frozen.issuperset(own)
    return any(fnmatch.fnmatchcase(f"{name}.running_mean", pattern) for pattern in part.freeze)
