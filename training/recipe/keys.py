"""Where a key stands in a recipe, by its last part: `epochs` is `train.epochs`."""

from typing import Any, get_args

from pydantic import BaseModel

from training.recipe.recipe import Recipe

DEEPEST = 4
"""Parts of a key, with dots between, that are looked through."""


def key_named(name: str) -> str | None:
    """The first key of that name among those with the fewest parts; None if there is none."""
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
    """The parts of a recipe that a field may hold, but for those in lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if getattr(annotation, "__origin__", None) in (tuple, list, dict):
        return []
    return [found for part in get_args(annotation) for found in _parts(part)]
