"""The REST edge: Open Inference Protocol v2 over HTTP, its OpenAPI document and a page to read it.

In: HTTP requests. Out: the protocol's JSON or binary answers; every error is `{"error": "..."}`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.resources import files

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from services.errors import (
    MethodNotAllowedError,
    ServingError,
    UnknownPathError,
)
from services.gateway import rest_codec
from services.gateway.admission import Admission, InferCall
from services.gateway.http_body import compress, read_body
from services.gateway.http_protocol import CALLER, Caller
from services.gateway.ledger import REQUEST_ID, Ledger, Record
from services.gateway.openapi import openapi_document
from services.gateway.server_facts import EXTENSIONS, NAME, ServerFacts

RETRY_AFTER_S = "1"
_CLIENT_CLOSED = "499"
"""The status nginx made customary for a caller that went away; it is only ever counted."""


class RestEdge:
    """Routes of the HTTP port."""

    def __init__(
        self,
        admission: Admission,
        facts: ServerFacts,
        ledger: Ledger,
        *,
        max_request_bytes: int,
    ) -> None:
        self._admission = admission
        self._facts = facts
        self._ledger = ledger
        self._max_request_bytes = max_request_bytes

    def application(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[*self._server_routes(), *self._model_routes()],
            exception_handlers={
                ServingError: _serving_error,
                HTTPException: _http_error,
                ClientDisconnect: _client_closed,
                Exception: _our_bug,
            },
        )

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
        calls: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("", "GET", self._model_metadata),
            ("/ready", "GET", self._model_ready),
            ("/infer", "POST", self._infer),
        ]
        return [
            Route(f"/v2/models/{{model}}{version}{suffix}", endpoint, methods=[method])
            for version in ("", "/versions/{version}")
            for suffix, method, endpoint in calls
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

    async def _infer(self, request: Request) -> Response:
        record = self._ledger.open("rest")
        record.name(request.headers.get(REQUEST_ID, ""), *_named(request))
        caller: Caller = request.scope[CALLER]
        try:
            body = await read_body(request, self._max_request_bytes)
            record.restart_clock()
            with caller.cancelling():
                response = await self._answer(request, body, record)
        except ServingError as error:
            response = error_response(error)
            record.close(str(error.http_status), error)
        except BaseException as error:
            hung_up = caller.gone or isinstance(error, ClientDisconnect)
            record.close(_CLIENT_CLOSED if hung_up else "500", error)
            if hung_up:
                raise ClientDisconnect from error
            raise
        else:
            record.close("200")
        response.headers[REQUEST_ID] = record.request_id
        return response

    async def _answer(self, request: Request, body: bytes, record: Record) -> Response:
        model, version = record.model, record.version
        signature = self._admission.directory.resolve(model, version)[1]
        header_length = request.headers.get(rest_codec.HEADER_LENGTH)
        decoded = rest_codec.decode(body, header_length, signature)
        if decoded.id:
            record.name(decoded.id, model, version)
        answer = await self._admission.infer(
            InferCall(
                request_id=record.request_id,
                model=model,
                version=version,
                inputs=decoded.inputs,
                outputs=decoded.outputs,
            )
        )
        record.answered(answer)
        encoded = rest_codec.encode(answer, decoded)
        content, encoding = compress(encoded.content, request.headers.get("accept-encoding", ""))
        binary = encoded.json_length is not None
        response = Response(
            content, media_type="application/octet-stream" if binary else "application/json"
        )
        if binary:
            response.headers[rest_codec.HEADER_LENGTH] = str(encoded.json_length)
        if encoding:
            response.headers["content-encoding"] = encoding
        return response


def _named(request: Request) -> tuple[str, str]:
    """The model and version in the URL; no version is the empty string."""
    return request.path_params["model"], request.path_params.get("version", "")


async def _live(_: Request) -> Response:
    return _json({"live": True})


async def _docs(_: Request) -> Response:
    return HTMLResponse(files("services.gateway").joinpath("docs.html").read_text())


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def error_response(error: ServingError) -> Response:
    """The protocol's error body, under the error's own status."""
    response = _json({"error": str(error)}, error.http_status)
    if error.retryable:
        response.headers["retry-after"] = RETRY_AFTER_S
    return response


async def _serving_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return error_response(error)


async def _client_closed(_: Request, __: Exception) -> Response:
    """Nobody reads this; it only keeps a caller that hung up out of the log of our own bugs."""
    return Response(status_code=int(_CLIENT_CLOSED))


async def _our_bug(_: Request, __: Exception) -> Response:
    """Whatever we did not foresee; the traceback is in the log, not in the answer."""
    return error_response(ServingError("internal error; the server's log says more"))


async def _http_error(request: Request, error: Exception) -> Response:
    """The router's two refusals, 404 and 405, in the protocol's form."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    refusal: ServingError = UnknownPathError(
        f"there is nothing at {path}; see /docs for what there is"
    )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = MethodNotAllowedError(f"{request.method} is not allowed on {path}; use {allowed}")
    response = error_response(refusal)
    response.headers.update(error.headers or {})
    return response
