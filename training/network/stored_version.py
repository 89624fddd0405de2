"""Finds the version in the store from which a recipe starts. No torch.

In: `model.from` of a recipe, such as `digits@3`, `digits@production` or `digits@^1.2`. Out: its
manifest, or the recipe with the version's number.

Rules: an alias or a range is resolved once and the stored recipe names the number, so a run is
still a function of its recipe; a name that could be both an alias and a semantic version is an
alias, for compatibility.
"""

import re

from flambeau.protocol.strict import nearest_name
from model_store.errors import ModelNotFoundError, VersionNotFoundError
from model_store.manifest import Manifest
from model_store.semver.semver import parse_range
from model_store.semver.semver_index import fitting
from model_store.store import ModelStore
from training.errors import RecipeError
from training.recipe.recipe import Recipe

_SHORT = re.compile(r"\d+\.\d+$")
"""A semantic version without its last number, which is neither one version nor a range."""


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
    name, _, wanted = version.partition("@")
    try:
        if wanted.isdecimal():
            return store.manifest(name, int(wanted))
        store.versions(name)
    except ModelNotFoundError:
        raise RecipeError(
            f"model.from names model '{name}', which is not in the store {store.url}"
            f"{nearest_name(name, store.models()) or '; it is empty'}"
        ) from None
    except VersionNotFoundError as error:
        raise RecipeError(f"model.from {name}@{wanted}: {error}") from None
    pointers = store.pointers(name)
    aliases = {} if pointers is None else pointers.aliases
    if wanted in aliases:
        return store.manifest(name, aliases[wanted])
    semver_range = parse_range(wanted)
    if semver_range is None:
        versions = ", ".join(map(str, store.versions(name)))
        hint = f"; write ^{wanted}, ~{wanted} or all three numbers" if _SHORT.match(wanted) else ""
        raise RecipeError(
            f"model.from {name}@{wanted}: '{name}' has no alias '{wanted}'"
            f"{nearest_name(wanted, aliases)}; its versions: {versions}{hint}"
        )
    try:
        return fitting(store, name, semver_range, wanted)
    except VersionNotFoundError as error:
        raise RecipeError(f"model.from {name}@{wanted}: {error}") from None
