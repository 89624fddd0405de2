"""The REST edge: Open Inference Protocol v2 over HTTP, its OpenAPI document and a page to read it.

In: heads of HTTP requests. Out: who answers them: `rest_infer.py` for inference, a Starlette
application for everything else. Every error is `{"error": "..."}`.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from importlib.resources import files

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from services.errors import MethodNotAllowedError, ServingError, UnknownPathError
from services.gateway.admission import Admission
from services.gateway.http_asgi import asgi_opener
from services.gateway.http_body import Body
from services.gateway.http_exchange import Exchange, Opener, error_body
from services.gateway.http_head import Head
from services.gateway.job_desk import JobDesk
from services.gateway.job_routes import JobRoutes
from services.gateway.ledger import Ledger
from services.gateway.openapi import openapi_document
from services.gateway.refusals import RETRY_AFTER_S
from services.gateway.rest_infer import InferExchange, InferRoute
from services.gateway.server_facts import EXTENSIONS, NAME, ServerFacts

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")


class RestEdge:
    """What the HTTP port answers."""

    def __init__(
        self,
        admission: Admission,
        facts: ServerFacts,
        ledger: Ledger,
        desk: JobDesk | None = None,
    ) -> None:
        self._admission = admission
        self._jobs = JobRoutes(admission, ledger, desk)
        self._facts = facts
        self._ledger = ledger
        self._open_other = asgi_opener(self._application())

    def route(self, head: Head) -> Opener:
        """Who answers a request."""
        found = _INFER.fullmatch(head.path)
        if found is None:
            return self._open_other
        if head.method != "POST":
            return _NotAllowed
        model, version = found[1], found[2] or ""
        route = InferRoute(self._admission, self._ledger, head, model, version)
        return partial(InferExchange, route)

    def _application(self) -> Starlette:
        application = Starlette(
            routes=[*self._server_routes(), *self._model_routes(), *self._jobs.routes()],
            exception_handlers={
                ServingError: _serving_error,
                HTTPException: _http_error,
                Exception: _our_bug,
            },
        )
        # A redirect would say where to go in words of the caller's, its Host header.
        application.router.redirect_slashes = False
        return application

    def _server_routes(self) -> list[Route]:
        return [
            Route("/v2", self._server_metadata),
            Route("/v2/", self._server_metadata),
            Route("/v2/health/live", _live),
            Route("/v2/health/ready", self._ready),
            Route("/openapi.json", self._openapi),
            Route("/docs", _docs),
        ]

    def _model_routes(self) -> list[Route]:
        calls: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
            ("", self._model_metadata),
            ("/ready", self._model_ready),
        ]
        return [
            Route(f"/v2/models/{{model}}{version}{suffix}", endpoint)
            for version in ("", "/versions/{version}")
            for suffix, endpoint in calls
        ]

    async def _server_metadata(self, _: Request) -> Response:
        return _json({"name": NAME, "version": self._facts.version, "extensions": list(EXTENSIONS)})

    async def _ready(self, _: Request) -> Response:
        ready = self._facts.is_ready()
        return _json({"ready": ready}, 200 if ready else 503)

    async def _openapi(self, _: Request) -> Response:
        return _json(openapi_document(self._facts.version))

    async def _model_metadata(self, request: Request) -> Response:
        return _json(asdict(self._facts.model(*_named(request))))

    async def _model_ready(self, request: Request) -> Response:
        model, version = _named(request)
        served = self._admission.directory.find(model, version)  # unknown names are 404
        ready = served.state == "ready"
        return _json({"name": model, "ready": ready}, 200 if ready else 503)


class _NotAllowed(Exchange):
    """Inference by another method than POST."""

    __slots__ = ()

    def begin(self, body: Body) -> None:
        """Refuses."""
        self.respond_error(
            _not_allowed(self.head.method, self.head.path, "POST"), b"allow: POST\r\n"
        )


def _named(request: Request) -> tuple[str, str]:
    """The model and version in the URL; no version is the empty string."""
    return request.path_params["model"], request.path_params.get("version", "")


async def _live(_: Request) -> Response:
    return _json({"live": True})


async def _docs(_: Request) -> Response:
    return HTMLResponse(files("services.gateway").joinpath("docs.html").read_text())


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _error_response(error: ServingError) -> Response:
    """The protocol's error body, under the error's own status."""
    response = Response(error_body(error), error.http_status, media_type="application/json")
    if error.retryable:
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response


async def _serving_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return _error_response(error)


async def _our_bug(_: Request, __: Exception) -> Response:
    """Whatever we did not foresee; the traceback is in the log, not in the answer."""
    return _error_response(ServingError("internal error; the server's log says more"))


async def _http_error(request: Request, error: Exception) -> Response:
    """The router's two refusals, 404 and 405, in the protocol's form."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]  # `request.url` is partly the caller's Host header
    refusal: ServingError = UnknownPathError(
        f"there is nothing at {path[:200]}; see /docs for what there is"
    )
    if error.status_code == 405:
        refusal = _not_allowed(request.method, path, (error.headers or {}).get("Allow", ""))
    response = _error_response(refusal)
    response.headers.update(error.headers or {})
    return response


def _not_allowed(method: str, path: str, allowed: str) -> MethodNotAllowedError:
    return MethodNotAllowedError(f"{method} is not allowed on {path[:200]}; use {allowed}")
