"""`flambeau models tag`, `describe`, `delete` and `unalias`: in a store, or at a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import (
    ModelName,
    Version,
    model_and_version,
    named_version,
    versions_that_begin,
)
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.options.token import TokenFile
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.remote.move_requests import tell_request
from flambeau.commands.text.failures import failing_with

if TYPE_CHECKING:
    from model_store.store import ModelStore

AtServer = Annotated[
    str,
    typer.Option(
        "--at",
        "--server",
        metavar="URL",
        help="Change it at the server http(s)://HOST:PORT, not in a store here.",
    ),
]
Why = Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded in the history.")]
ModelOrVersion = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[/VERSION]",
        help="A model, or a version as digits/3.",
        autocompletion=versions_that_begin,
    ),
]
VersionName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL/VERSION",
        help="The version, as digits/3.",
        autocompletion=versions_that_begin,
    ),
]


@failing_with(STORE_FAILURES)
def tag(
    model: ModelOrVersion,
    tags: Annotated[
        list[str],
        typer.Argument(metavar="NAME=TEXT...", help="Tags to set; NAME= alone removes one."),
    ],
    store: StoreUrl = DEFAULT_STORE,
    at: AtServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Set tags of a model or a version, or remove them."""
    changes: dict[str, str | None] = {}
    for text in tags:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"'{text}' is no tag; write NAME=TEXT, or NAME= to remove it")
        changes[name] = value or None
    _annotate(model, {"tags": changes}, store, at, token_file, as_json)


@failing_with(STORE_FAILURES)
def describe(
    model: ModelOrVersion,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The description; '' for none.")],
    store: StoreUrl = DEFAULT_STORE,
    at: AtServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model or a version, in place of its present description."""
    _annotate(model, {"description": text}, store, at, token_file, as_json)


@failing_with(STORE_FAILURES)
def delete(
    model: VersionName,
    version: Version = None,
    why: Why = "",
    store: StoreUrl = DEFAULT_STORE,
    at: AtServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a version that no alias and no pipeline names; its number is never used again.

    A server also refuses one that it serves; in a store, look for servers first.
    """
    if at:
        name, number = model_and_version(model, version)
        if "@" in name or number is None:
            raise typer.BadParameter(f"which version of '{name}'? Give MODEL/VERSION, as digits/2")
        done = _call(at, token_file, "DELETE", ("models", name, "versions", number), why)
    else:
        from model_store.records.deletion import delete_version

        name, number = named_version(model, version, store)
        deleted = delete_version(existing_store(store), name, number, why=why)
        done = deleted.model_dump(mode="json")
    print_outcome(f"{name} {number} is deleted", done, as_json)


@failing_with(STORE_FAILURES)
def unalias(
    model: ModelName,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias; never production.")],
    why: Why = "",
    store: StoreUrl = DEFAULT_STORE,
    at: AtServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove an alias other than production; the version that it names stays."""
    if at:
        moved = _call(at, token_file, "DELETE", ("models", model, "aliases", alias), why)
        if tell_request(moved, at, as_json):
            return
    else:
        from model_store.approvals.asked_move import remove_alias

        removed = remove_alias(existing_store(store), model, alias, why)
        moved = removed.model_dump(mode="json")
    text = f"{model} has no alias {alias} any more (generation {moved['generation']})"
    print_outcome(text, {"model": model, **moved}, as_json)


def _annotate(
    named: str,
    changes: dict[str, Any],
    store: str,
    at: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    model, version = model_and_version(named, None)
    if at:
        place = ("models", model) if version is None else ("models", model, "versions", version)
        noted = _call(at, token_file, "PATCH", place, document=changes)
    else:
        noted = _annotated(existing_store(store), model, version, changes)
    tags = ", ".join(f"{name}={text}" for name, text in sorted(noted["tags"].items()))
    print_outcome(f"{named}: {noted['description'] or '-'} ({tags or 'no tags'})", noted, as_json)


def _annotated(
    store: "ModelStore", model: str, version: int | None, changes: dict[str, Any]
) -> dict[str, Any]:
    from model_store.host.this_user import this_user
    from model_store.records.annotations import annotate

    if version is None:
        store.versions(model)  # fails for a model that is not there
    else:
        store.manifest(model, version)
    return annotate(store.storage, model, version, this_user(), **changes).model_dump(mode="json")


def _call(
    at: str,
    token_file: Path | None,
    method: str,
    place: tuple[str | int, ...],
    why: str = "",
    document: Any = None,
) -> dict[str, Any]:
    from flambeau.registry.connection import path_of

    with registry_at(at, token_file) as registry:
        query = {"why": why} if why else None
        found: dict[str, Any] = registry.call(method, path_of(*place), document, query=query)
    return found
