"""`flambeau models tag`, `describe` and `delete`: in a store, or at a server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import (
    Version,
    model_and_version,
    named_version,
    versions_that_begin,
)
from flambeau.commands.options.registry import ServerUrl, Why
from flambeau.commands.options.store import DEFAULT_STORE, STORE_FAILURES, StoreUrl
from flambeau.commands.options.token import TokenFile
from flambeau.commands.places.model_place import model_place
from flambeau.commands.text.failures import failing_with

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
    server: ServerUrl = "",
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
    _annotate(model, {"tags": changes}, store, server, token_file, as_json)


@failing_with(STORE_FAILURES)
def describe(
    model: ModelOrVersion,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The description; '' for none.")],
    store: StoreUrl = DEFAULT_STORE,
    server: ServerUrl = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model or a version, in place of its present description."""
    _annotate(model, {"description": text}, store, server, token_file, as_json)


@failing_with(STORE_FAILURES)
def delete(
    model: VersionName,
    version: Version = None,
    why: Why = "",
    store: StoreUrl = DEFAULT_STORE,
    server: ServerUrl = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a version that no alias and no pipeline names; its number is never used again.

    A server also refuses one that it serves; in a store, look for servers first.
    """
    with model_place(store, server, token_file) as place:
        name, number = named_version(model, version, place.find)
        done = place.delete(name, number, why)
    print_outcome(f"{name} {number} is deleted", done, as_json)


def _annotate(
    named: str,
    changes: dict[str, Any],
    store: str,
    server: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    model, version = model_and_version(named, None)
    with model_place(store, server, token_file) as place:
        noted = place.annotate(model, version, changes)
    tags = ", ".join(f"{name}={text}" for name, text in sorted(noted["tags"].items()))
    print_outcome(f"{named}: {noted['description'] or '-'} ({tags or 'no tags'})", noted, as_json)
