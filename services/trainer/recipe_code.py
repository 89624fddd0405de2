"""Finds code that a recipe names and that only an authenticated client may name.

In: a recipe's document. Out: the targets in it that are foreign.

Rules: a target that is not on a list of whole targets is foreign, since a module also exposes what
it imports, and an object of it may execute its arguments. A text counts as a target if
`load_target` would accept it, at any place, so that no new part of the recipe, and no argument that
is used as a target, is overlooked.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from training.recipe.targets import split_target

SHIPPED_TARGETS = frozenset(
    {
        "training.data_sets.digits:as_columns",
        "training.data_sets.digits:as_ink",
        "training.data_sets.digits:as_numbers",
        "training.data_sets.digits:as_raw",
        "training.data_sets.digits:at_sizes",
        "training.datasets:digits",
        "training.models.early_exit:EarlyExit",
        "training.models.encoder:EncoderClassifier",
        "training.models.mlp:Mlp",
        "training.models.recurrent:RecurrentClassifier",
        "training.models.residual_cnn:ResidualCnn",
        "training.models.seq2seq:Seq2Seq",
        "training.models.swish:SwishClassifier",
        "training.networks:SmallCnn",
    }
)
"""Flambeau's targets for all clients: networks and data sets, which only use their arguments."""


def foreign_targets(document: Any, allowed: Sequence[str]) -> list[str]:
    """Returns the targets that are not listed, each with its key, as in `model.target: a:B`.

    Args:
        document: document of the recipe.
        allowed: targets beside flambeau's own, such as `my_company.models:Net`.
    """
    listed = SHIPPED_TARGETS.union(allowed)
    return [
        f"{key}: {text}"
        for key, text in _texts(document, "")
        if text not in listed and (_is_target(key) or split_target(text) is not None)
    ]


def _is_target(key: str) -> bool:
    return key.rpartition(".")[2] == "target"


def _texts(part: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yields every text of a document, with its key."""
    if isinstance(part, str):
        yield key, part
    elif isinstance(part, dict):
        for name, value in part.items():
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(part, list | tuple):
        for position, value in enumerate(part):
            yield from _texts(value, f"{key}.{position}")
