"""The version of a recipe with `publish.to`: verified in a store of its own, pushed to a registry.

In: a recipe, and a run that publishes into the store that it is given. Out: the version in the
registry, and its alias moved there if the conditions of the recipe hold.

Rules: the registry is asked before the run if the caller may push, and which number is free; a
push that fails loses no training, since the same command repeats the export alone, with `--resume`
if the recipe trains; the error of a push whose answer was lost says to look at the registry first.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from flambeau.commands.options.token import KEY_VARIABLE, key_of_environment
from flambeau.commands.remote.connecting import registry_with
from flambeau.commands.remote.transfer import push_one

if TYPE_CHECKING:
    from flambeau.registry.connection import RegistryConnection
    from model_store.manifest import Manifest
    from training.recipe.recipe import Recipe

CONFLICT = 409
NO_KEY = f"; give a key in the environment variable {KEY_VARIABLE}"


@contextlib.contextmanager
def pushed_where_asked(recipe: "Recipe") -> Iterator[str]:
    """Gives the block a store for its version, and pushes the version to the recipe's registry.

    Yields:
        URL of the store to publish into; empty, and nothing is pushed, for a recipe without
        `publish.to`.

    Raises:
        Exit: the registry refused the version, or it does not answer.
    """
    to, model = recipe.publish.to, recipe.publish.model
    if to is None:
        yield ""
        return
    from flambeau.registry.publication import prepare
    from model_store.store import ModelStore

    token = key_of_environment()
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        store = ModelStore(folder)
        with registry_with(to, token, NO_KEY) as registry:
            number = prepare(registry, store, model)
        yield folder
        with registry_with(to, token, f"{NO_KEY}, and {_again(recipe)}") as registry:
            _push(registry, store.manifest(model, number), store, recipe)


def _again(recipe: "Recipe") -> str:
    """Returns how the export alone is repeated."""
    return "run it again" if recipe.weights else "run it again with --resume"


def _push(
    registry: "RegistryConnection", manifest: "Manifest", store: Any, recipe: "Recipe"
) -> None:
    from flambeau.registry.errors import RegistryError, RegistryUnknownError
    from flambeau.registry.sources import StoredVersion

    what = f"{manifest.model} {manifest.version_text}"
    source = StoredVersion(store, manifest.model, manifest.version)
    why = f"trained from recipe '{recipe.name}'"
    try:
        report = push_one(registry, source, why, is_part=False)
    except RegistryUnknownError as error:
        typer.echo(
            f"error: it is not known whether {what} is at {registry.url}: {error.__cause__}; look "
            f"there (flambeau models show {manifest.model} {manifest.version} --server "
            f"{registry.url}); if it is, promote it, if not, {_again(recipe)}",
            err=True,
        )
        raise typer.Exit(1) from error
    except RegistryError as error:
        typer.echo(
            f"error: {what} is not at {registry.url}: {error}; {_again(recipe)}, which trains "
            "nothing anew",
            err=True,
        )
        raise typer.Exit(1) from error
    if report is not None and report.breaks:
        typer.echo(f"note: {report.breaks}", err=True)
    try:
        outcome = _moved(registry, manifest, recipe)
    except RegistryError as error:
        typer.echo(f"error: {what} is at {registry.url}, and {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"pushed {what} to {registry.url}{outcome}")


def _moved(registry: "RegistryConnection", manifest: "Manifest", recipe: "Recipe") -> str:
    """Moves the alias of the recipe if its conditions hold; returns the outcome in words.

    Raises:
        RegistryError: it was not moved, or this is not known; the message says which.
    """
    from flambeau.registry.errors import RegistryError
    from flambeau.registry.publication import move_alias
    from training.promotion import MOST_ATTEMPTS, decide

    alias, model = recipe.publish.alias, manifest.model
    if alias is None:
        return "; no alias moves"
    decision = decide(recipe, manifest)
    if not decision.met:
        return f"; {alias} stays where it is{decision.finding}"
    first = recipe.publish.rule().first
    for attempt in range(1, MOST_ATTEMPTS + 1):
        if first and _is_named(registry, model, alias):
            break
        try:
            note = move_alias(registry, model, manifest.version, alias, decision.why, first=first)
        except RegistryError as error:  # of another writer: it may have moved this alias
            if not first or error.status != CONFLICT or attempt == MOST_ATTEMPTS:
                raise
        else:
            return f"; {note}{decision.finding}" if note else f" → {alias}{decision.finding}"
    return f"; {alias} stays where it is{decision.finding}"


def _is_named(registry: "RegistryConnection", model: str, alias: str) -> bool:
    """Returns True if an alias names a version.

    Raises:
        RegistryError: the registry does not answer, or the caller may not read.
    """
    from flambeau.registry.connection import path_of
    from flambeau.registry.errors import RegistryError

    try:
        page = registry.call("GET", path_of("models", model), query={"limit": "1"})
    except RegistryError as error:
        raise RegistryError(f"{alias} was not moved to it: {error}", error.status) from error
    return alias in page["aliases"]
