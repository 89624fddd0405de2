"""Names of a model's parameters and layers, and the patterns of a recipe that select some of them.

Rule: names are those of the network itself, with or without `preprocess` in front of it, and a
pattern that matches nothing is an error that lists the names.
"""

import fnmatch
from collections.abc import Iterable

from torch import nn

from training.errors import RecipeError
from training.network.preprocessing import Preprocessed

NAMES_TOLD = 40
"""Names of the model that an error message about a pattern lists."""


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns each parameter once, in the model's order."""
    return {_own(name, model): parameter for name, parameter in model.named_parameters()}


def named_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Returns each module once, except for the model itself."""
    found = {_own(name, model): module for name, module in model.named_modules()}
    return {name: module for name, module in found.items() if name not in ("", "network")}


def matching(pattern: str, names: Iterable[str], key: str) -> list[str]:
    """Returns the names that a pattern matches.

    Args:
        pattern: a shell pattern, such as `head.*`.
        names: all names.
        key: the key of the pattern in the recipe, for messages.

    Raises:
        RecipeError: it matches none.
    """
    known = list(names)
    found = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        shown = ", ".join(known[:NAMES_TOLD]) + (" and more" if len(known) > NAMES_TOLD else "")
        raise RecipeError(f"{key} {pattern!r} fits nothing of the model, which has {shown}")
    return found


def matching_any(patterns: Iterable[str], names: Iterable[str], key: str) -> list[str]:
    """Returns the names that any pattern matches, each once; arguments and errors as `matching`."""
    known = list(names)
    return list(dict.fromkeys(n for pattern in patterns for n in matching(pattern, known, key)))


def _own(name: str, model: nn.Module) -> str:
    return name.removeprefix("network.") if isinstance(model, Preprocessed) else name
