"""The REST edge: Open Inference Protocol v2 over HTTP, its OpenAPI document and a page to read it.

In: heads of HTTP requests. Out: their handlers: `rest_infer.py` for inference, a Starlette
application for everything else. Every error is `{"error": "..."}`.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.access.caller import Principal
from services.access.credential import secret_of
from services.errors import MethodNotAllowedError, ServingError, UnknownPathError
from services.gateway.admission import Admission
from services.gateway.edges.administration.calls import AdministrationCalls
from services.gateway.edges.administration.rest_routes import AdministrationRoutes
from services.gateway.edges.documentation.open_document import OpenDocument
from services.gateway.edges.documentation.page_files import page_files
from services.gateway.edges.job_routes import JobRoutes
from services.gateway.edges.predict.model_status import ModelStatusRoutes
from services.gateway.edges.predict.predict_exchange import PREDICT, V1, predict_opener
from services.gateway.edges.rest_infer import REST, InferExchange, RestInferRoute
from services.gateway.edges.streams.generate import GenerateExchange, GenerateStreamExchange
from services.gateway.inference import InferencePath, Sampler
from services.gateway.jobs.job_service import JobService
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import ServerFacts
from services.gateway.shared_regions.regions import SharedRegions
from services.ports import LIVE_PATH, READY_PATH
from services.registry.event_routes import EVENTS
from services.registry.registry import CHUNK_BYTES, Registry
from services.registry.rest_routes import PREFIX, RegistryRoutes
from services.wire.body import SMALL_BODY_BYTES, Body
from services.wire.http1.asgi import RESERVE, asgi_opener
from services.wire.http1.exchange import (
    JSON,
    Exchange,
    ExchangeConnection,
    Opener,
    error_body,
)
from services.wire.http1.head import Head

if TYPE_CHECKING:
    from services.access.authenticator import Authenticator

_DOCUMENT = "/openapi.json"
_JOBS = re.compile(r"/v2/models/[^/]+(?:/versions/[^/]+)?/jobs")
_RESULTS = "/v2/jobs/"
"""Paths of jobs, whose results may be large."""
_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/(infer|generate|generate_stream)")
_INFERENCES = {
    "infer": InferExchange,
    "generate": GenerateExchange,
    "generate_stream": GenerateStreamExchange,
}


class RestEdge:
    """Routes and answers the requests of the HTTP port."""

    def __init__(
        self,
        admission: Admission,
        facts: ServerFacts,
        accounting: RequestAccounting,
        service: JobService | None = None,
        authenticator: "Authenticator | None" = None,
        sampler: Sampler | None = None,
        administration: AdministrationCalls | None = None,
        regions: SharedRegions | None = None,
        registry: Registry | None = None,
    ) -> None:
        self._admission = admission
        self._path = InferencePath(REST, admission, accounting, sampler, regions)
        self._predict_path = InferencePath(V1, admission, accounting, sampler)
        self._status = ModelStatusRoutes(admission.directory, self._principal)
        self._authenticator = authenticator
        self._jobs = JobRoutes(admission, accounting, service, self._principal)
        calls = administration or AdministrationCalls(admission.directory, accounting)
        self._administration = AdministrationRoutes(calls, self._principal)
        self._registry = RegistryRoutes(registry, self._principal)
        self._facts = facts
        self._accounting = accounting
        self._document = OpenDocument(
            admission.directory,
            admission.work,
            facts.version,
            with_jobs=service is not None,
            with_regions=regions is not None,
            with_registry=registry is not None,
        )
        live = orjson.dumps({"live": True})
        # Open endpoints, which reveal nothing about the models.
        self._open: dict[str, Callable[[], _Said]] = {
            LIVE_PATH: lambda: (200, JSON, live),
            READY_PATH: self._ready,
            **{path: partial(_file, *file) for path, file in page_files().items()},
        }
        application = self._application()
        # Triton compresses no other calls of its API, and `tritonclient.http.aio` inflates none.
        self._open_other = asgi_opener(application, compresses=False)
        self._open_compressed = asgi_opener(application)
        self._open_job = asgi_opener(application, reads_bodies=True)
        self._open_events = asgi_opener(application, streams=True)
        self._open_registry = asgi_opener(
            application, reads_bodies=True, most_bytes=CHUNK_BYTES, compresses=False
        )

    def route(self, head: Head) -> Opener:
        """Finds the handler of a request.

        Raises:
            UnauthenticatedError: the client is unauthenticated; its body is not awaited.
            InvalidRequestError: there are two credentials.
        """
        if (say := self._open.get(head.path)) is not None:
            is_read = head.method in ("GET", "HEAD")
            return partial(_OpenAnswer, say) if is_read else partial(_NotAllowed, "GET, HEAD")
        found = _INFER.fullmatch(head.path)
        authorization = None
        if self._authenticator is not None:
            secret = secret_of(head.text("authorization") or "", head.text("x-api-key") or "")
            if not secret and head.path == _DOCUMENT:
                return self._open_compressed
            self._authenticator.admit(secret)
            authorization = self._authenticator.authorization(secret, "infer")
        if found is None:
            if (predicts := PREDICT.fullmatch(head.path)) is not None:
                if head.method != "POST":
                    return partial(_NotAllowed, "POST")
                return predict_opener(self._predict_path, head, predicts, authorization)
            if head.path == _DOCUMENT or head.path.startswith(_RESULTS):
                return self._open_compressed
            if head.path == PREFIX + EVENTS:
                return self._open_events
            if head.path.startswith(PREFIX):
                return self._open_registry
            is_job = head.method == "POST" and _JOBS.fullmatch(head.path)
            return self._open_job if is_job else self._open_other
        if head.method != "POST":
            return partial(_NotAllowed, "POST")
        model, version = found[1], found[2] or ""
        route = RestInferRoute(self._path, head, model, version, authorization)
        return partial(_INFERENCES[found[3]], route)

    def _principal(self, request: Request) -> Principal:
        """Identifies the caller of a request.

        Raises:
            UnauthenticatedError: the caller is unknown.
        """
        peer = request.client.host if request.client else ""
        if self._authenticator is None:
            return Principal(None, peer)
        headers = request.headers
        secret = secret_of(headers.get("authorization", ""), headers.get("x-api-key", ""))
        return Principal(self._authenticator.admit(secret), peer)

    def _application(self) -> Starlette:
        application = Starlette(
            routes=[
                *self._administration.routes(),  # `/v2/models/stats` is no model
                *self._server_routes(),
                *self._model_routes(),
                *self._jobs.routes(),
                *self._status.routes(),
                *self._registry.routes(),
            ],
            exception_handlers={
                ServingError: _serving_error,
                HTTPException: _http_error,
                Exception: _our_bug,
            },
        )
        # A redirect's location would come from the caller's Host header.
        application.router.redirect_slashes = False
        return application

    def _server_routes(self) -> list[Route]:
        return [
            Route(_DOCUMENT, self._open_document),
            Route("/v2", self._server_metadata),
            Route("/v2/", self._server_metadata),
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

    async def _open_document(self, request: Request) -> Response:
        """Describes the models that the caller sees; to a stranger, where keys are asked for, none.

        Raises:
            UnauthenticatedError: there is a credential, and it is unknown.
        """
        headers = request.headers
        has_secret = "authorization" in headers or "x-api-key" in headers
        if self._authenticator is not None and not has_secret:
            return Response(self._document.general, media_type="application/json")
        principal = self._principal(request)
        principal.take_request()
        document = await self._document.seen_by(principal)
        request.scope[RESERVE](len(document))
        return Response(document, media_type="application/json")

    async def _server_metadata(self, request: Request) -> Response:
        self._principal(request).take_request()
        facts = self._facts
        extensions = list(facts.extensions)
        return _json({"name": facts.name, "version": facts.version, "extensions": extensions})

    def _ready(self) -> "_Said":
        ready = self._facts.is_ready()
        reason = self._facts.why_not_served()
        said = {"ready": ready, "reason": reason} if reason else {"ready": ready}
        return 200 if ready else 503, JSON, orjson.dumps(said)

    async def _model_metadata(self, request: Request) -> Response:
        model, version = _named(request)
        principal = self._principal(request)
        principal.require_seen(model)
        principal.take_request()
        with self._accounting.counting_refusals():
            return _json(asdict(self._facts.model(model, version)))

    async def _model_ready(self, request: Request) -> Response:
        model, version = _named(request)
        principal = self._principal(request)
        principal.require_seen(model)
        principal.take_request()
        served = self._admission.directory.find(model, version)  # unknown names are 404
        ready = served.state == "ready"
        return _json({"name": model, "ready": ready}, 200 if ready else 503)


class _BodilessExchange(Exchange):
    """An exchange whose request body is ignored."""

    __slots__ = ()

    def body_limit(self, max_bytes: int) -> int:
        """Returns a few KiB, which are ignored."""
        return min(max_bytes, SMALL_BODY_BYTES)


_Said = tuple[int, bytes, bytes]
"""Status, header lines, content."""


class _OpenAnswer(_BodilessExchange):
    """An open endpoint's exchange, without the cost of an application and a task."""

    __slots__ = ("_say",)
    is_quick = True

    def __init__(
        self, say: Callable[[], _Said], connection: ExchangeConnection, head: Head
    ) -> None:
        super().__init__(connection, head)
        self._say = say

    def begin(self, body: Body) -> None:
        """Sends the response."""
        status, fields, content = self._say()
        self.respond(status, fields, [content])


class _NotAllowed(_BodilessExchange):
    """An exchange of a path that has other methods."""

    __slots__ = ("_allowed",)

    def __init__(self, allowed: str, connection: ExchangeConnection, head: Head) -> None:
        super().__init__(connection, head)
        self._allowed = allowed

    def begin(self, body: Body) -> None:
        """Refuses the method."""
        self.respond_error(
            _not_allowed(self.head.method, self.head.path, self._allowed),
            f"allow: {self._allowed}\r\n".encode(),
        )


def _file(fields: bytes, content: bytes) -> _Said:
    return 200, fields, content


def _named(request: Request) -> tuple[str, str]:
    """Returns the model and version in the URL; no version is the empty string."""
    return request.path_params["model"], request.path_params.get("version", "")


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _error_response(error: ServingError) -> Response:
    """Returns the protocol's error body, under the error's own status."""
    response = Response(error_body(error), error.http_status, media_type="application/json")
    if error.retryable:
        response.headers["retry-after"] = str(error.retry_after_s)
    if error.http_status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _serving_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return _error_response(error)


async def _our_bug(_: Request, __: Exception) -> Response:
    """Answers an unexpected error; the traceback is in the log, not in the response."""
    return _error_response(ServingError("internal error; see the server's log"))


async def _http_error(request: Request, error: Exception) -> Response:
    """Answers the router's two refusals, 404 and 405, in the protocol's form."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]  # `request.url` is partly the caller's Host header
    refusal: ServingError = UnknownPathError(f"unknown path {path[:200]}; see /docs for the API")
    if error.status_code == 405:
        refusal = _not_allowed(request.method, path, (error.headers or {}).get("Allow", ""))
    response = _error_response(refusal)
    response.headers.update(error.headers or {})
    return response


def _not_allowed(method: str, path: str, allowed: str) -> MethodNotAllowedError:
    return MethodNotAllowedError(f"{method} is not allowed on {path[:200]}; use {allowed}")
