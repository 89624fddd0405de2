"""Holds parameters as they are for a whole run, or for its first epochs.

A frozen batch norm is kept in evaluation mode: its statistics are parameters in all but name.
"""

from torch import nn

from training.model_names import matching, named_layers, named_parameters
from training.model_parts import FreezePart


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
        names = {n for p in part.freeze for n in matching(p, parameters, "model.freeze")}
        self._part = part
        self._parameters = [parameters[n] for n in names if parameters[n].requires_grad]
        frozen = {id(parameters[name]) for name in names}
        self._norms = [
            layer
            for layer in named_layers(model).values()
            if isinstance(layer, nn.modules.batchnorm._NormBase)
            and (own := [id(p) for p in layer.parameters(recurse=False)])
            and frozen.issuperset(own)
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
