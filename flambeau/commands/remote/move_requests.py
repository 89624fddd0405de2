"""`flambeau models requests`, `approve` and `refuse`: moves that need two persons, at a server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_json, print_outcome
from flambeau.commands.options.model import ModelName
from flambeau.commands.options.registry import ServerUrl, Why
from flambeau.commands.options.token import TokenFile
from flambeau.commands.remote.connecting import registry_at

Number = Annotated[int, typer.Argument(metavar="REQUEST", min=1, help="Number of the request.")]


def requests(
    model: ModelName,
    server: ServerUrl,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of requests.")] = 20,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the requests for moves that need two persons, the newest first."""
    from flambeau.commands.text.move_requests import request_lines
    from flambeau.registry.connection import path_of

    with registry_at(server, token_file) as registry:
        path = path_of("models", model, "requests")
        found = registry.call("GET", path, query={"limit": str(limit)})
        shown = _known(found, registry.url)
    if as_json:
        print_json(shown)
    elif shown:
        typer.echo("\n".join(request_lines(shown)))
    else:
        typer.echo(f"nobody has asked for a move of {model} that needs two persons")


def approve(
    model: ModelName,
    number: Number,
    server: ServerUrl,
    why: Why = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Make the move that another person asked for; flambeau models requests shows it."""
    from flambeau.commands.text.move_requests import approved_line

    moved = _decide(server, token_file, model, number, "approve", why)
    print_outcome(approved_line(model, moved), {"model": model, **moved}, as_json)


def refuse(
    model: ModelName,
    number: Number,
    server: ServerUrl,
    why: Why = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Refuse the move that another person asked for, or withdraw your own request."""
    request = _decide(server, token_file, model, number, "refuse", why)["request"]
    text = f"request {number} for {model} is {request['state']}"
    print_outcome(text, request, as_json)


def tell_request(answer: dict[str, Any], url: str, as_json: bool) -> bool:
    """Prints the request that a move has become, if it needs two persons.

    Returns:
        True if the answer is one.
    """
    from flambeau.commands.text.move_requests import waiting_line

    request = answer.get("request")
    if request is None:
        return False
    print_outcome(waiting_line(request, url), answer, as_json)
    return True


def _decide(
    url: str, token_file: Path | None, model: str, number: int, verb: str, why: str
) -> dict[str, Any]:
    from flambeau.registry.connection import path_of

    with registry_at(url, token_file) as registry:
        path = path_of("models", model, "requests", number, verb)
        found: dict[str, Any] = registry.call("POST", path, {"why": why})
    return found


def _known(found: Any, url: str) -> list[dict[str, Any]]:
    from flambeau.registry.errors import RegistryError

    if not isinstance(found, dict) or not isinstance(found.get("requests"), list):
        raise RegistryError(
            f"{url} answered without requests; its flambeau may be older than this one"
        )
    shown: list[dict[str, Any]] = found["requests"]
    return shown
