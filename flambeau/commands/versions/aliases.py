"""`flambeau models promote`, `rollback` and `unalias`: move aliases, in a store or at a server."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flambeau.commands.options.allow_breaking import AllowBreaking
from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import ModelName, named_version, parse_version
from flambeau.commands.options.registry import Why
from flambeau.commands.options.store import STORE_FAILURES
from flambeau.commands.places.at_place import at_place
from flambeau.commands.places.model_place import ModelPlace
from flambeau.commands.remote.move_requests import tell_request
from flambeau.commands.text.model import PRODUCTION

SIMILAR = 0.8
"""Ratio of `difflib` from which aliases count as similar; 0.83 for `canary` and `cnaary`."""
Alias = Annotated[str, typer.Option(metavar="NAME", help="The alias to move.")]


@at_place(STORE_FAILURES)
def promote(
    place: ModelPlace,
    model: ModelName,
    version: Annotated[
        int | None,
        typer.Argument(
            metavar="VERSION",
            parser=parse_version,
            help="Version that the alias shall name; required, unless MODEL is MODEL/VERSION.",
        ),
    ] = None,
    alias: Alias = PRODUCTION,
    allow_breaking: AllowBreaking = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Point production, or another alias, at a version; an alias that is new is created.

    A version for production must fit the callers of the version there, unless --allow-breaking.
    A rollout or a split of the model ends, also if production names the version already.
    """
    name, number = named_version(model, version, place.find)
    moved = place.promote(name, number, alias, allow_breaking=allow_breaking, why=why)
    _print_move(place, name, alias, moved, as_json)
    if not place.url:
        _tell_if_new(name, alias, moved)


@at_place(STORE_FAILURES)
def rollback(
    place: ModelPlace,
    model: ModelName,
    alias: Alias = PRODUCTION,
    why: Why = "rollback",
    as_json: AsJson = False,
) -> None:
    """Point production, or another alias, back at its previous version.

    While a rollout or a split runs, end it: production stays, and gets all requests again.
    A second rollback returns to the version before the first one; promote goes further back.
    """
    _print_move(place, model, alias, place.roll_back(model, alias, why), as_json)


@at_place(STORE_FAILURES)
def unalias(
    place: ModelPlace,
    model: ModelName,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias; never production.")],
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Remove an alias other than production; the version that it names stays."""
    moved = place.remove_alias(model, alias, why)
    if not tell_request(moved, place.url, as_json):
        text = f"{model} has no alias {alias} any more (generation {moved['generation']})"
        print_outcome(text, {"model": model, **moved}, as_json)


def _print_move(
    place: ModelPlace, model: str, alias: str, moved: dict[str, Any], as_json: bool
) -> None:
    """Prints a move that was made, or the request for it that waits for a second person."""
    from flambeau.commands.text.moves import move_line

    if not tell_request(moved, place.url, as_json):
        print_outcome(move_line(model, alias, moved), {"model": model, **moved}, as_json)


def _tell_if_new(model: str, alias: str, moved: Mapping[str, Any]) -> None:
    """Tells on standard error that an alias was created, since its name may be a typing error."""
    is_new = any(one["alias"] == alias and one["from"] is None for one in moved["changes"])
    if not is_new or alias == PRODUCTION:
        return
    others = {PRODUCTION, *moved["aliases"]} - {alias}
    close = difflib.get_close_matches(alias, others, n=1, cutoff=SIMILAR)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    typer.echo(f"note: created the alias '{alias}' of {model}{hint}", err=True)
