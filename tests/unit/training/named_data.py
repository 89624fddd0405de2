"""Recipes of data by name, for the tests of sources."""

from typing import Any

from training.datasets import Splits, load_splits
from training.recipe.recipe import Recipe
from training.sources.data_files import DataReach


def recipe(data: dict[str, Any], **changes: Any) -> Recipe:
    """A recipe whose model is never made."""
    return Recipe.model_validate(
        {
            "name": "r",
            "model": {"target": "unused:Unused"},
            "data": data,
            "publish": {"model": "m"},
            **changes,
        }
    )


def splits(data: dict[str, Any], reach: DataReach | None = None, **changes: Any) -> Splits:
    """Returns the splits of a source."""
    return load_splits(recipe(data, **changes), reach)
