"""The JSON Schema of recipes, for editors and for the generated reference. Imports no torch."""

from typing import Any

from training.recipe.recipe import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """Returns the schema of every key: type, limits, default and help.

    The schema does not express invalid combinations of keys; `load_recipe` checks those.
    """
    return {"$schema": DIALECT, **Recipe.model_json_schema()}
