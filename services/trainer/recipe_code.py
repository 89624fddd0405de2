"""Which code a recipe names, and whether a caller without a token may name it.

In: a recipe's document. Out: the targets in it that are not ours.

A `target` is told by its form, wherever it stands, so that a part of the recipe that is new, or an
argument that ends up as a target, is not overlooked.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

SHIPPED = "training"
_TARGET = re.compile(r"(?P<place>[^\s:]+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")


def foreign_targets(document: Any, allowed: Sequence[str]) -> list[str]:
    """The targets that lie in none of our packages, each with its key, as in `model.target: a:B`.

    Args:
        document: of the recipe.
        allowed: packages beside our own, such as `my_company.models`.
    """
    packages = (SHIPPED, *allowed)
    found = []
    for key, text in _texts(document, ""):
        match = _TARGET.fullmatch(text)
        place = match["place"] if match else ""
        if match and not any(place == one or place.startswith(f"{one}.") for one in packages):
            found.append(f"{key}: {text}")
    return found


def _texts(part: Any, key: str) -> Iterator[tuple[str, str]]:
    """Every text of a document, with where it stands."""
    if isinstance(part, str):
        yield key, part
    elif isinstance(part, dict):
        for name, value in part.items():
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(part, list | tuple):
        for position, value in enumerate(part):
            yield from _texts(value, f"{key}.{position}")
