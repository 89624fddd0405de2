"""The JSON Schema of recipes, for editors, and for the reference that is made from it. No torch."""

from typing import Any

from training.recipe.recipe import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """Every key with its type, limits, default and help.

    What only some combinations of keys forbid, it does not know; `load_recipe` does.
    """
    return {"$schema": DIALECT, **Recipe.model_json_schema()}
