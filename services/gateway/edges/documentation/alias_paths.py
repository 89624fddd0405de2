"""The calls on aliases, and on moves that need two persons, as paths of an OpenAPI document."""

from collections.abc import Mapping
from typing import Any

from services.gateway.edges.documentation.openapi_parts import (
    JSON,
    MODEL,
    array_of,
    json_body,
    object_of,
    operation,
    path_parameter,
    reference,
    responses_of,
)

_TEXT: dict[str, Any] = {"type": "string"}
_TIME: dict[str, Any] = {**_TEXT, "format": "date-time"}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 999_999_999}
_WHY: dict[str, Any] = {**_TEXT, "maxLength": 500}
_STATES = ("open", "executed", "approved", "refused", "withdrawn", "expired", "outdated")


def alias_paths(base: str, errors: Mapping[str, str], limit: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the paths of a model's aliases, and of requests for their moves.

    Args:
        base: path of the models of the registry.
        errors: errors of a call that changes something, by status.
        limit: the parameter that limits the entries of a page.
    """
    alias = path_parameter("alias", "Name of the alias, such as production.")
    number = path_parameter("number", "Number of the request.")
    moved = moved_responses(errors)
    why = {"name": "why", "in": "query", "description": "The reason.", "schema": _WHY}
    removal = operation(
        "removeAlias", "Remove an alias other than production", moved, parameters=[why]
    )
    paths = {
        "aliases/{alias}": _post(
            "promoteVersion", "Point an alias at a version", moved, alias, "RegistryPromotion"
        )
        | {"delete": removal},
        "aliases/{alias}/rollback": _post(
            "rollbackAlias", "Point an alias at the version that it named before", moved, alias
        ),
        "requests": {
            "parameters": [MODEL],
            "get": operation(
                "moveRequests",
                "Requests for moves that need two persons, the newest first",
                responses_of("RegistryRequests", errors),
                parameters=[limit],
            ),
        },
        "requests/{number}/approve": _post(
            "approveMove",
            "Make the move that another person asked for",
            responses_of("RegistryMove", errors),
            number,
        ),
        "requests/{number}/refuse": _post(
            "refuseMove",
            "Refuse a move that another person asked for, or withdraw one's own request",
            responses_of("RegistryWaiting", errors),
            number,
        ),
    }
    return {f"{base}{{model}}/{path}": item for path, item in paths.items()}


def moved_responses(errors: Mapping[str, str]) -> dict[str, Any]:
    """Describes the responses of a move: it is made, or it waits for a second person."""
    waits = {
        "description": "The move needs a second person, and is recorded as a request",
        "content": {JSON: {"schema": reference("RegistryWaiting")}},
    }
    return {**responses_of("RegistryMove", errors), "202": waits}


def _post(
    name: str,
    summary: str,
    responses: Mapping[str, Any],
    place: Mapping[str, Any],
    body: str = "RegistryReason",
) -> dict[str, Any]:
    done = operation(name, summary, responses, requestBody=json_body(body))
    return {"parameters": [MODEL, place], "post": done}


def alias_schemas() -> dict[str, Any]:
    """Returns the schemas that the paths refer to."""
    flag = {"type": "boolean"}
    started = {"type": "object"}
    return {
        "RegistryPromotion": object_of(
            ["version"], version=_NUMBER, allow_breaking=flag, first=flag, why=_WHY
        ),
        "RegistryRequests": object_of(["requests"], requests=array_of("RegistryRequest")),
        "RegistryWaiting": object_of(["request"], request=reference("RegistryRequest")),
        "RegistryRequest": object_of(
            ["number"],
            number=_NUMBER,
            model=_TEXT,
            move=object_of(
                ["act", "alias", "why"],
                act=_TEXT,
                alias=_TEXT,
                version=_NUMBER,
                allow_breaking=flag,
                first=flag,
                why=_TEXT,
                rollout=started,
                shadow=started,
                split=started,
            ),
            who=_TEXT,
            when=_TIME,
            until=_TIME,
            generation={"type": "integer", "minimum": 0},
            target=_NUMBER,
            state={**_TEXT, "enum": [*_STATES]},
            decision={"type": ["object", "null"]},
            ends={"type": "array", "items": _TEXT},
            error=_TEXT,
        ),
    }
