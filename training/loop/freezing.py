"""Freezes parameters for a whole run, or for its first epochs.

A frozen batch norm stays in evaluation mode: its running statistics are frozen too.
"""

import fnmatch
from collections.abc import Collection, Mapping

from torch import nn

from training.errors import RecipeError
from training.network.model_names import matching_any, named_layers, named_parameters
from training.recipe.parts.model_parts import FreezePart

NAMES_TOLD = 6
"""Number of parameters that a message names."""


class Freezing:
    """The frozen parameters of one model.

    Args:
        model: the model.
        part: the recipe's part on freezing.

    Raises:
        RecipeError: a pattern matches no parameter, or all of them, so that nothing would train.
    """

    def __init__(self, model: nn.Module, part: FreezePart) -> None:
        parameters = named_parameters(model)
        if not parameters:
            raise RecipeError(
                "no parameter of the model is left to train: it has none; name a network that has "
                "layers with weights, and keeps them as attributes or in nn.ModuleList"
            )
        names = matching_any(part.freeze, parameters, "model.freeze")
        _check_some_learn(parameters, names, part)
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
            self._hold(True)  # an optimizer that is built now excludes them

    @property
    def held_for_good(self) -> list[nn.Module]:
        """The batch norms that stay in evaluation mode until the end."""
        return [*self._norms] if self._part.unfreeze_at is None else []

    def begin_epoch(self, epoch: int) -> None:
        """Freezes or unfreezes for an epoch; called after `model.train()`.

        Args:
            epoch: its number, from 1.
        """
        until = self._part.unfreeze_at
        self._hold(until is None or epoch < until.epoch)

    def release(self) -> None:
        """Unfreezes all parameters, for a phase after this one."""
        for parameter in self._parameters:
            parameter.requires_grad_(True)

    def _hold(self, held: bool) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(not held)
        if held:
            for norm in self._norms:
                norm.eval()


def _check_some_learn(
    parameters: Mapping[str, nn.Parameter], frozen: Collection[str], part: FreezePart
) -> None:
    """Checks that some parameters train from the first epoch on.

    Raises:
        RecipeError: no parameter does.
    """
    learning = [name for name, parameter in parameters.items() if parameter.requires_grad]
    if not learning:
        raise RecipeError(
            f"no parameter of the model is left to train: all {len(parameters)} have "
            "requires_grad=False; use model.freeze instead, which can unfreeze them later"
        )
    if set(learning) - set(frozen):
        return
    patterns = ", ".join(part.freeze)
    until = "" if part.unfreeze_at is None else f" before epoch {part.unfreeze_at.epoch}"
    raise RecipeError(
        f"no parameter of the model is left to train{until}: model.freeze ({patterns}) fits all of "
        f"them ({', '.join(learning[:NAMES_TOLD])}{', ...' if len(learning) > NAMES_TOLD else ''});"
        " narrow it to the layers that are to stay as they are"
    )


def _is_frozen(name: str, norm: nn.Module, part: FreezePart, frozen: set[int]) -> bool:
    """Returns True if all its parameters are frozen or, without any, its statistics match."""
    own = [id(parameter) for parameter in norm.parameters(recurse=False)]
    if own:
        return frozen.issuperset(own)
    return any(fnmatch.fnmatchcase(f"{name}.running_mean", pattern) for pattern in part.freeze)
