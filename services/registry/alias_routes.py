"""Aliases over REST, and moves that need two persons: paths below a model, and their JSON.

POST   aliases/A                  {"version": 3, "why": "..."}
DELETE aliases/A[?why=TEXT]       removes it; never `production`
POST   aliases/A/rollback         {"why": "..."}
GET    requests[?limit=N]         requests for moves, the newest first
POST   requests/N/approve         {"why": "..."}: makes the move
POST   requests/N/refuse          {"why": "..."}: refuses it, or withdraws one's own

A move that waits for a second person is answered with 202 and its request.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from model_store.approvals.asked_move import AskedMove
from model_store.rollouts.requests import Reason
from services.access.caller import Principal
from services.registry.alias_moves import REQUEST, AliasMoves
from services.registry.bodies import as_json, document, page_size, parsed, whole_number
from services.registry.registry import Registry

Call = Callable[[Registry, Request, Principal], Awaitable[Response]]


class _Promotion(Reason):
    version: int = Field(ge=1, le=999_999_999)
    allow_breaking: bool = False
    first: bool = False


def alias_calls() -> dict[str, dict[str, Call]]:
    """Returns the calls by path below a model, and by method."""
    return {
        "aliases/{alias}": {"POST": _promote, "DELETE": _remove},
        "aliases/{alias}/rollback": {"POST": _rollback},
        "requests": {"GET": _requests},
        "requests/{number}/approve": {"POST": _approve},
        "requests/{number}/refuse": {"POST": _refuse},
    }


def moved(found: dict[str, Any]) -> Response:
    """Returns the answer to a move: 202 for one that waits for a second person."""
    return as_json(found, 202 if REQUEST in found else 200)


async def _promote(registry: Registry, request: Request, principal: Principal) -> Response:
    wanted = await parsed(_Promotion, request)
    names = request.path_params
    move = AskedMove(
        act="promote",
        alias=names["alias"],
        version=wanted.version,
        allow_breaking=wanted.allow_breaking,
        first=wanted.first,
        why=wanted.why,
    )
    return moved(await AliasMoves(registry).move(principal, names["model"], move))


async def _remove(registry: Registry, request: Request, principal: Principal) -> Response:
    names, why = request.path_params, request.query_params.get("why", "")
    move = AskedMove(act="remove alias", alias=names["alias"], why=why)
    return moved(await AliasMoves(registry).move(principal, names["model"], move))


async def _rollback(registry: Registry, request: Request, principal: Principal) -> Response:
    wanted = await parsed(Reason, request)
    names = request.path_params
    move = AskedMove(act="rollback", alias=names["alias"], why=wanted.why or "rollback")
    return moved(await AliasMoves(registry).move(principal, names["model"], move))


async def _requests(registry: Registry, request: Request, principal: Principal) -> Response:
    model, limit = request.path_params["model"], page_size(request)
    return document(request, await AliasMoves(registry).requests(principal, model, limit))


async def _approve(registry: Registry, request: Request, principal: Principal) -> Response:
    wanted, names = await parsed(Reason, request), request.path_params
    number = whole_number(names["number"], "number")
    moves = AliasMoves(registry)
    return as_json(await moves.approve(principal, names["model"], number, wanted.why))


async def _refuse(registry: Registry, request: Request, principal: Principal) -> Response:
    wanted, names = await parsed(Reason, request), request.path_params
    number = whole_number(names["number"], "number")
    moves = AliasMoves(registry)
    return as_json(await moves.refuse(principal, names["model"], number, wanted.why))
