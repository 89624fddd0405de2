"""Finds the full path of a recipe key by its last part: `epochs` is `train.epochs`."""

from typing import Any, get_args

from pydantic import BaseModel

from training.recipe.recipe import Recipe

DEEPEST = 4
"""Most parts of a dotted key that are searched."""


def key_named(name: str) -> str | None:
    """Returns the first key of that name among those with the fewest parts, or None."""
    level: list[tuple[str, type[BaseModel]]] = [("", Recipe)]
    for _ in range(DEEPEST):
        deeper: list[tuple[str, type[BaseModel]]] = []
        for above, model in level:
            for field, info in model.model_fields.items():
                key = f"{above}{info.alias or field}"
                if (info.alias or field) == name:
                    return key
                deeper += [(f"{key}.", inner) for inner in _parts(info.annotation)]
        level = deeper
    return None


def _parts(annotation: Any) -> list[type[BaseModel]]:
    """Returns the recipe parts that a field may hold, except those in lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if getattr(annotation, "__origin__", None) in (tuple, list, dict):
        return []
    return [found for part in get_args(annotation) for found in _parts(part)]
