"""`flambeau models tag`, `describe` and `delete`: in a store, or at a server."""

from typing import Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import (
    Version,
    model_and_version,
    named_version,
    versions_that_begin,
)
from flambeau.commands.options.registry import Why
from flambeau.commands.options.store import STORE_FAILURES
from flambeau.commands.places.at_place import at_place
from flambeau.commands.places.model_place import ModelPlace

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


@at_place(STORE_FAILURES)
def tag(
    place: ModelPlace,
    model: ModelOrVersion,
    tags: Annotated[
        list[str],
        typer.Argument(metavar="NAME=TEXT...", help="Tags to set; NAME= alone removes one."),
    ],
    as_json: AsJson = False,
) -> None:
    """Set tags of a model or a version, or remove them."""
    changes: dict[str, str | None] = {}
    for text in tags:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"'{text}' is no tag; write NAME=TEXT, or NAME= to remove it")
        changes[name] = value or None
    _annotate(place, model, {"tags": changes}, as_json)


@at_place(STORE_FAILURES)
def describe(
    place: ModelPlace,
    model: ModelOrVersion,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The description; '' for none.")],
    as_json: AsJson = False,
) -> None:
    """Describe a model or a version, in place of its present description."""
    _annotate(place, model, {"description": text}, as_json)


@at_place(STORE_FAILURES)
def delete(
    place: ModelPlace,
    model: VersionName,
    version: Version = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Delete a version that no alias and no pipeline names; its number is never used again.

    A server also refuses one that it serves; in a store, look for servers first.
    """
    name, number = named_version(model, version, place.find)
    print_outcome(f"{name} {number} is deleted", place.delete(name, number, why), as_json)


def _annotate(place: ModelPlace, named: str, changes: dict[str, Any], as_json: bool) -> None:
    model, version = model_and_version(named, None)
    noted = place.annotate(model, version, changes)
    tags = ", ".join(f"{name}={text}" for name, text in sorted(noted["tags"].items()))
    print_outcome(f"{named}: {noted['description'] or '-'} ({tags or 'no tags'})", noted, as_json)
