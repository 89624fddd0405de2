"""`flambeau models history`: the moves of a model's aliases, or the aliases at a time.

In: a store, or the registry of a server. Out: the same documents from both.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.model import ModelName
from flambeau.commands.options.registry import SERVER_HELP
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.options.token import TokenFile
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.moves import move_lines, state_lines

if TYPE_CHECKING:
    from flambeau.registry.connection import RegistryConnection

PAGE = 100
"""Moves of one call to a registry, as many as it gives."""

When = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Show what each alias named at this time in ISO 8601, such as 2026-11-01T12:00 or "
        "2026-11-01T12:00+01:00; without a zone it is UTC.",
    ),
]
HistoryServerUrl = Annotated[str, typer.Option("--server", metavar="URL", help=SERVER_HELP)]
"""Same as `ServerUrl`, whose `--at` is a time here."""
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="Number of moves, the newest first.")]


@failing_with(STORE_FAILURES)
def history(
    model: ModelName,
    at: When = "",
    limit: Limit = 1000,
    store: StoreUrl = DEFAULT_STORE,
    server: HistoryServerUrl = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the moves of a model's aliases, the newest first: from, to, time, user, reason.

    With --at TIME, show what each alias named then: by the last move, in the order of the moves,
    whose time is not later.
    """
    when = _time(at) if at else None
    if server:
        _print_remote(server, token_file, model, when, limit, as_json)
        return
    from model_store.records.moves import moves_page, pointers_when, state_document

    opened = existing_store(store)
    if when is not None:
        _print_state(state_document(model, when, pointers_when(opened, model, when)), as_json)
        return
    moves = [move.document() for move in moves_page(opened, model, limit).moves]
    _print_moves(model, moves, as_json)


def _time(text: str) -> datetime:
    from flambeau.registry.url import is_registry
    from model_store.records.moves import parse_time

    if is_registry(text):
        raise typer.BadParameter(
            f"'{text}' is a server, and --at is a time here; name the server by --server",
            param_hint="--at",
        )
    try:
        return parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at") from error


def _print_remote(
    url: str,
    token_file: Path | None,
    model: str,
    when: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    from flambeau.registry.connection import path_of
    from flambeau.registry.errors import RegistryError

    path = path_of("models", model, "history")
    with registry_at(url, token_file) as registry:
        try:
            if when is None:
                _print_moves(model, [*_moves(registry, path, limit)], as_json)
            else:
                state = registry.call("GET", path, query={"at": when.isoformat()})
                _print_state(state, as_json)
        except (KeyError, TypeError, AttributeError) as error:
            raise RegistryError(
                f"{url} answered without moves or aliases; its flambeau may be older than this one"
            ) from error


def _moves(registry: "RegistryConnection", path: str, limit: int) -> Iterator[dict[str, Any]]:
    """Yields the newest moves, page by page."""
    query: dict[str, str] = {}
    while limit > 0:
        size = min(limit, PAGE)
        page = registry.call("GET", path, query={**query, "limit": str(size)})
        yield from page["moves"][:size]
        if page["next"] is None:
            return
        limit, query = limit - size, {"before": str(page["next"])}


def _print_moves(model: str, moves: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(moves)
    elif moves:
        typer.echo("\n".join(move_lines(moves)))
    else:
        typer.echo(f"no pointer of {model} was ever moved; use: flambeau models promote {model} 1")


def _print_state(state: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(state)
    else:
        typer.echo("\n".join(state_lines(state)))
