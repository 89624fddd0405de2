"""The registry over REST: its paths and their JSON.

GET    /v1/registry/models[?after=NAME&limit=N]                  models, by name
GET    /v1/registry/models/M[?before=V&limit=N]                  a model, its newest versions first
PATCH  /v1/registry/models/M[/versions/V]                        its description and tags
GET    /v1/registry/models/M/history[?before=G&limit=N]          the moves of its aliases
GET    /v1/registry/models/M/history?at=TIME                     its aliases at that time
GET    /v1/registry/models/M/versions/V                          a version, by number or alias
DELETE /v1/registry/models/M/versions/V[?why=TEXT]               deletes it
GET    /v1/registry/models/M/versions/V/files/F                  a file of it; Range is honoured
POST   /v1/registry/models/M/aliases/A                           moves it; see alias_routes.py
DELETE /v1/registry/models/M/aliases/A[?why=TEXT]                removes it
GET    /v1/registry/models/M/requests[?limit=N]                  moves that wait, or waited
GET    /v1/registry/models/M/{rollout,shadow,split}              what runs; see rollout_routes.py
GET    /v1/registry/events[?after=ID]                            events, as they happen
GET    /v1/registry/uploads                                      the caller's open uploads
POST   /v1/registry/uploads                                      begins or resumes an upload
GET    /v1/registry/uploads/ID                                   its state
PUT    /v1/registry/uploads/ID/files/F?offset=N                  appends the body to a file
POST   /v1/registry/uploads/ID/finish                            {"why": "..."}
DELETE /v1/registry/uploads/ID                                   abandons it

A POST or PATCH must say that it is JSON: a page of a browser cannot send that to another site
unasked.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from flambeau.protocol.strict import StrictModel
from model_store.uploads.declaration import parse_declaration
from services.access.caller import Principal
from services.errors import (
    UnsupportedError,
)
from services.registry.alias_routes import alias_calls
from services.registry.bodies import (
    as_json,
    document,
    json_body,
    page_size,
    parsed,
    whole_number,
)
from services.registry.call_arguments import NOWHERE
from services.registry.event_routes import EVENTS, stream_events
from services.registry.files import wanted_part
from services.registry.registry import Registry
from services.registry.rollout_routes import rollout_calls

PREFIX = "/v1/registry/"

RegistryCall = Callable[[Registry, Request, Principal], Awaitable[Response]]


class _Reason(StrictModel):
    why: str = ""


class _Changes(StrictModel):
    description: str | None = None
    tags: dict[str, str | None] | None = None


class RegistryRoutes:
    """The routes, for an application that turns errors into responses.

    Args:
        registry: the registry; None refuses every call.
        principal_of: identifies the caller of a request.
    """

    def __init__(
        self, registry: Registry | None, principal_of: Callable[[Request], Principal]
    ) -> None:
        self._registry = registry
        self._principal_of = principal_of

    def routes(self) -> list[Route]:
        """Returns the routes."""
        model, upload = "models/{model}", "uploads/{id}"
        version = f"{model}/versions/{{version}}"
        calls: dict[str, dict[str, RegistryCall]] = {
            "models": {"GET": _models},
            model: {"GET": _model, "PATCH": _annotate},
            f"{model}/history": {"GET": _history},
            version: {"GET": _version, "DELETE": _delete, "PATCH": _annotate},
            f"{version}/files/{{file}}": {"GET": _download},
            EVENTS: {"GET": stream_events},
            "uploads": {"GET": _uploads, "POST": _begin},
            upload: {"GET": _upload, "DELETE": _abandon},
            f"{upload}/files/{{file}}": {"PUT": _append},
            f"{upload}/finish": {"POST": _finish},
            **{
                f"{model}/{path}": by_method
                for path, by_method in (alias_calls() | rollout_calls()).items()
            },
        }
        return [
            Route(PREFIX + path, self._at_registry(by_method), methods=list(by_method))
            for path, by_method in calls.items()
        ]

    def _at_registry(
        self, by_method: Mapping[str, RegistryCall]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            principal = self._principal_of(request)
            principal.take_request()
            if self._registry is None:
                raise UnsupportedError(NOWHERE)
            method = "GET" if request.method == "HEAD" else request.method
            return await by_method[method](self._registry, request, principal)

        return endpoint


async def _models(registry: Registry, request: Request, principal: Principal) -> Response:
    after = request.query_params.get("after", "")[:128]
    return document(request, await registry.models(principal, after, page_size(request)))


async def _model(registry: Registry, request: Request, principal: Principal) -> Response:
    model = request.path_params["model"]
    number = _before(request)
    return document(request, await registry.model(principal, model, number, page_size(request)))


async def _history(registry: Registry, request: Request, principal: Principal) -> Response:
    model, at = request.path_params["model"], request.query_params.get("at")
    if at is not None:
        return document(request, await registry.aliases_at(principal, model, at))
    before = _before(request)
    return document(request, await registry.history(principal, model, before, page_size(request)))


async def _version(registry: Registry, request: Request, principal: Principal) -> Response:
    model, version = request.path_params["model"], request.path_params["version"]
    return document(request, await registry.version(principal, model, version))


async def _download(registry: Registry, request: Request, principal: Principal) -> Response:
    names = request.path_params
    file = await registry.open_file(principal, names["model"], names["version"], names["file"])
    headers = {"accept-ranges": "bytes"}
    if file.sha256:
        headers["etag"] = f'"{file.sha256}"'
    part = wanted_part(request.headers.get("range", ""), file.size_bytes)
    if part is None:
        headers["content-range"] = f"bytes */{file.size_bytes}"
        return Response(status_code=416, headers=headers)
    start, end = part
    is_part = "range" in request.headers and part != (0, file.size_bytes)
    if is_part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.size_bytes}"
    return StreamingResponse(
        registry.read(file, start, end),
        206 if is_part else 200,
        headers,
        "application/octet-stream",
    )


async def _annotate(registry: Registry, request: Request, principal: Principal) -> Response:
    wanted = await parsed(_Changes, request)
    names = request.path_params
    version = whole_number(names["version"], "version") if "version" in names else None
    found = await registry.annotate(
        principal, names["model"], version, wanted.description, wanted.tags
    )
    return as_json(found)


async def _delete(registry: Registry, request: Request, principal: Principal) -> Response:
    names, why = request.path_params, request.query_params.get("why", "")
    version = whole_number(names["version"], "version")
    return as_json(await registry.delete(principal, names["model"], version, why))


async def _uploads(registry: Registry, request: Request, principal: Principal) -> Response:
    return document(request, await registry.own_uploads(principal))


async def _begin(registry: Registry, request: Request, principal: Principal) -> Response:
    body = await json_body(request)
    return as_json(await registry.begin(principal, partial(parse_declaration, body)))


async def _upload(registry: Registry, request: Request, principal: Principal) -> Response:
    return as_json(await registry.upload(principal, request.path_params["id"]))


async def _append(registry: Registry, request: Request, principal: Principal) -> Response:
    names = request.path_params
    offset = whole_number(request.query_params.get("offset", ""), "offset")
    data = (await request.receive())["body"]  # whole; `Request.body` would copy it
    return as_json(await registry.append(principal, names["id"], names["file"], offset, data))


async def _finish(registry: Registry, request: Request, principal: Principal) -> Response:
    wanted = await parsed(_Reason, request)
    return as_json(await registry.finish(principal, request.path_params["id"], wanted.why))


async def _abandon(registry: Registry, request: Request, principal: Principal) -> Response:
    await registry.abandon(principal, request.path_params["id"])
    return Response(status_code=204)


def _before(request: Request) -> int | None:
    before = request.query_params.get("before")
    return None if before is None else whole_number(before, "before")
