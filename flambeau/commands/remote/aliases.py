"""`flambeau models promote` and `rollback`: `--at` the registry of a server, and their output."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flambeau.commands.options.as_json import print_outcome
from flambeau.commands.options.model import model_and_version
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.remote.move_requests import tell_request

At = Annotated[
    str,
    typer.Option(
        "--at",
        "--server",
        metavar="URL",
        help="Move it at the server http(s)://HOST:PORT, not in a store here.",
    ),
]


def move_alias(
    url: str,
    token_file: Path | None,
    named: str,
    version: int | None,
    alias: str,
    why: str,
    allow_breaking: bool,
    as_json: bool,
) -> None:
    """Points an alias at a version, and prints the move."""
    model, number = model_and_version(named, version)
    if "@" in model or number is None:
        raise typer.BadParameter(f"which version of '{model}'? Give MODEL/VERSION, as digits/2")
    document: dict[str, object] = {"version": number, "why": why}
    if allow_breaking:  # an older server knows no such key
        document["allow_breaking"] = True
    _post(url, token_file, model, (alias,), document, as_json)


def roll_back_alias(
    url: str, token_file: Path | None, model: str, alias: str, why: str, as_json: bool
) -> None:
    """Points an alias at its previous version, and prints the move."""
    place = (alias, "rollback")
    _post(url, token_file, model, place, {"why": why}, as_json, is_made_once=True)


def _post(
    url: str,
    token_file: Path | None,
    model: str,
    place: tuple[str, ...],
    document: dict[str, object],
    as_json: bool,
    *,
    is_made_once: bool = False,
) -> None:
    from flambeau.registry.connection import path_of

    path = path_of("models", model, "aliases", *place)
    with registry_at(url, token_file) as registry:
        moved = registry.call("POST", path, document, is_made_once=is_made_once)
    if tell_request(moved, registry.url, as_json):
        return
    print_move(model, place[0], moved, as_json)


def print_move(model: str, alias: str, moved: dict[str, Any], as_json: bool) -> None:
    """Prints a move that was made."""
    from flambeau.commands.text.moves import move_line

    print_outcome(move_line(model, alias, moved), {"model": model, **moved}, as_json)
