"""Finds the version in the store from which a recipe starts. No torch.

In: `model.from` of a recipe, such as `digits@3`, `digits@production` or `digits@^1.2`. Out: its
manifest, or the recipe with the version's number.

Rules: an alias or a range is resolved once and the stored recipe names the number, so a run is
still a function of its recipe.
"""

from model_store.errors import ModelNotFoundError, VersionNotFoundError
from model_store.manifest import Manifest
from model_store.store import ModelStore
from model_store.version_address import find_version
from training.errors import RecipeError
from training.recipe.recipe import Recipe


def with_parent_number(recipe: Recipe, store: ModelStore) -> Recipe:
    """Returns the recipe with the number of its parent version, if it has one.

    Raises:
        RecipeError: there is no such model, version or alias.
        StoreError: the store cannot be read.
    """
    if recipe.model.from_ is None:
        return recipe
    return beginning_with(recipe, stored_version(store, recipe.model.from_))


def beginning_with(recipe: Recipe, manifest: Manifest) -> Recipe:
    """Returns the recipe with the version's number."""
    version = f"{manifest.model}@{manifest.version}"
    part = recipe.model.model_copy(update={"from_": version})
    return recipe.model_copy(update={"model": part})


def stored_version(store: ModelStore, version: str) -> Manifest:
    """Returns the version that `model@version`, `model@alias` or `model@range` names.

    Raises:
        RecipeError: there is none.
    """
    try:
        return find_version(store, version)
    except ModelNotFoundError as error:
        raise RecipeError(f"model.from: {error}") from None
    except VersionNotFoundError as error:
        raise RecipeError(f"model.from {version}: {error}") from None
