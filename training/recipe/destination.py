"""The place of a version: a store, or the registry of a server. Pure.

Rule: only `flambeau train` pushes; every other run of a recipe with `publish.to` is refused before
it trains.
"""

from training.errors import RecipeError
from training.recipe.recipe import Recipe


def check_destination(recipe: Recipe, into: str = "") -> None:
    """Refuses a recipe for a registry where nobody pushes.

    Args:
        recipe: the run.
        into: the store whose version is pushed; empty for none.

    Raises:
        RecipeError: nobody pushes.
    """
    if recipe.publish.to is not None and not into:
        raise RecipeError(
            f"publish.to is {recipe.publish.to}, and here a version is published into the store; "
            "run the recipe with flambeau train, or leave publish.to out and push the version"
        )
