"""The REST edge of training jobs.

POST   /v1/jobs                      submits a job in JSON: recipe, overrides, a bundle in base64
GET    /v1/jobs[?state=S&limit=N]    lists jobs, the newest first
GET    /v1/jobs/ID                   returns the job
GET    /v1/jobs/ID/events[?after=N][&follow=true]   JSON lines, or server-sent events if accepted
POST   /v1/jobs/ID/cancel            cancels it
POST   /v1/jobs/ID/resume            resumes it from its checkpoint
GET    /v1/recipe.schema.json        returns the JSON schema of recipes, for editors
GET    /v1/health/live, /v1/health/ready

Errors are `{"error": "..."}` with the HTTP status of the error class.
"""

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from services.access.audit import refusals_audited
from services.access.authenticator import Authenticator
from services.access.caller import Principal
from services.access.credential import secret_among
from services.errors import (
    InvalidRequestError,
    MethodNotAllowedError,
    RateLimitedError,
    ServingError,
    UnknownPathError,
)
from services.trainer.edges.submission_body import read_submission
from services.trainer.records import JobEvent, TrainingJob
from services.trainer.training_job_service import Submission, TrainingJobService
from services.wire.http1.asgi import asgi_opener, refusal_in
from services.wire.http1.exchange import Opener
from services.wire.http1.head import Head
from training.recipe.schema import recipe_schema

logger = logging.getLogger("flambeau.trainer")

RETRY_AFTER_S = "2"
MAX_NUMBER_DIGITS = 18
"""Digits of a number in a query or a header; more do not fit into the store."""
EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"
_MOMENTS = ("created_at", "started_at", "finished_at")
_HIDDEN = ("holder", "lease_until", "revision", "deaths")


class TrainingRoutes:
    """The routes of the REST edge.

    Args:
        service: service that executes the calls.
        authenticator: authenticator of clients, if credentials are required.
    """

    def __init__(
        self, service: TrainingJobService, authenticator: Authenticator | None = None
    ) -> None:
        self._service = service
        self._authenticator = authenticator
        application = self._application()
        self._open = asgi_opener(application)
        self._open_stream = asgi_opener(application, streams=True)
        self._open_submission = asgi_opener(application, reads_bodies=True, gate=self)

    def route(self, head: Head) -> Opener:
        """Finds the handler of a request; only a submission has a large body."""
        if head.path.endswith("/events"):
            return self._open_stream
        is_submission = head.method == "POST" and head.path == "/v1/jobs"
        return self._open_submission if is_submission else self._open

    def admit(self, head: Head, peer: str) -> None:
        """Checks the client of a submission before its body is awaited.

        Raises:
            ServingError: it may not submit.
        """
        self._bearer(head)

    def refused(self, head: Head, peer: str, error: ServingError) -> None:
        """Audits a submission that was refused before its body was read."""
        name = ""
        with contextlib.suppress(ServingError):
            name = self._bearer(head)
        with contextlib.suppress(ServingError), refusals_audited("submit", "", name, peer):
            raise error

    def _bearer(self, head: Head) -> str:
        """Returns the name of the client of a submission; empty where nobody needs a credential."""
        if self._authenticator is None:
            return ""
        return self._authenticator.admit(_secret(head.headers)).name

    def _application(self) -> Starlette:
        calls: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("/v1/jobs", "POST", self._submit),
            ("/v1/jobs", "GET", self._list),
            ("/v1/jobs/{id}", "GET", self._get),
            ("/v1/jobs/{id}/events", "GET", self._events),
            ("/v1/jobs/{id}/cancel", "POST", self._cancel),
            ("/v1/jobs/{id}/resume", "POST", self._resume),
            ("/v1/recipe.schema.json", "GET", self._schema),
            ("/v1/health/live", "GET", self._live),
            ("/v1/health/ready", "GET", self._ready),
        ]
        return Starlette(
            routes=[Route(path, call, methods=[method]) for path, method, call in calls],
            exception_handlers={
                ServingError: _serving_error,
                HTTPException: _http_error,
                Exception: _our_fault,
            },
        )

    def _principal(self, request: Request, act: str = "") -> Principal:
        """Returns the client of a call; `act` is as for `Authenticator.principal`.

        Raises:
            InvalidRequestError: there are two credentials.
            UnauthenticatedError: the credential is missing or unknown.
            RateLimitedError: the client exceeds its rate limit.
        """
        peer = request.client.host if request.client else ""
        if self._authenticator is None:
            return Principal(None, peer)
        target = request.path_params.get("id", "")
        with refusals_audited(act, target, "", peer):
            secret = _secret(request.headers.raw)
        return self._authenticator.principal(secret, peer, act, target)

    async def _submit(self, request: Request) -> Response:
        principal = self._principal(request, "submit")
        with refusals_audited("submit", "", principal.name, principal.peer):
            wanted = await self._submission(request)
        job = await self._service.submit(wanted, principal)
        response = _json(job_document(job), 202)
        response.headers["location"] = f"/v1/jobs/{job.id}"
        return response

    async def _submission(self, request: Request) -> Submission:
        """Reads the submission in the request's body.

        Raises:
            PayloadTooLargeError: the JSON beside the bundle exceeds its limit.
            InvalidRequestError: the body is not a valid submission.
        """
        body = (await request.receive())["body"]
        own = body if isinstance(body, bytearray) else bytearray(body)
        return await read_submission(own, request.headers.get("idempotency-key", ""))

    async def _list(self, request: Request) -> Response:
        principal = self._principal(request)
        state, limit = request.query_params.get("state", ""), _number(request, "limit")
        jobs = await self._service.newest(state, limit, principal)
        return _json({"jobs": [job_document(job, with_recipe=False) for job in jobs]})

    async def _get(self, request: Request) -> Response:
        found = await self._service.find(request.path_params["id"], self._principal(request))
        return _json(job_document(found))

    async def _events(self, request: Request) -> Response:
        job_id, principal = request.path_params["id"], self._principal(request)
        as_stream = EVENT_STREAM in request.headers.get("accept", "")
        after = _number(request, "after")
        if given := request.headers.get("last-event-id", ""):  # a browser that reconnects
            after = int(given) if given.isdecimal() and len(given) <= MAX_NUMBER_DIGITS else after
        follow = request.query_params.get("follow", "false").lower() in ("true", "1", "yes")
        batches = await self._service.watch(job_id, after, follow, principal)
        return StreamingResponse(
            _written(batches, as_stream),
            media_type=EVENT_STREAM if as_stream else JSON_LINES,
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _cancel(self, request: Request) -> Response:
        job = await self._service.cancel(
            request.path_params["id"], self._principal(request, "cancel")
        )
        return _json(job_document(job))

    async def _resume(self, request: Request) -> Response:
        job = await self._service.resume(
            request.path_params["id"], self._principal(request, "resume")
        )
        return _json(job_document(job))

    async def _schema(self, _: Request) -> Response:
        return Response(_schema_text(), media_type="application/json")

    async def _live(self, _: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, _: Request) -> Response:
        ready = not self._service.stopping
        return _json({"ready": ready}, 200 if ready else 503)


def _secret(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the credential in the headers; raises InvalidRequestError for two."""
    fields = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    return secret_among(fields)


def job_document(job: TrainingJob, *, with_recipe: bool = True) -> dict[str, Any]:
    """Converts a job to a JSON document; times are in RFC 3339."""
    document = msgspec.to_builtins(job)
    for name in _HIDDEN + (() if with_recipe else ("recipe",)):
        del document[name]
    for name in _MOMENTS:
        if document[name] is not None:
            document[name] = _moment(document[name])
    return document  # type: ignore[no-any-return]


def event_document(event: JobEvent) -> dict[str, Any]:
    """Converts an event to a JSON document; omits fields with default values."""
    return {**msgspec.to_builtins(event), "time": _moment(event.time)}


async def _written(batches: AsyncIterator[list[JobEvent]], as_stream: bool) -> AsyncIterator[bytes]:
    async for events in batches:
        yield _page_text(events, as_stream)


def _page_text(events: list[JobEvent], as_stream: bool) -> bytes:
    texts = ((event.seq, orjson.dumps(event_document(event))) for event in events)
    if as_stream:
        return b"".join(b"id: %d\ndata: %b\n\n" % one for one in texts)
    return b"".join(b"%b\n" % text for _, text in texts)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not text.isdecimal() or len(text) > MAX_NUMBER_DIGITS:
        raise InvalidRequestError(f"'{name}' must be a whole number, and is {text[:40]!r}")
    return int(text)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


@functools.cache
def _schema_text() -> bytes:
    """Returns the schema, cached: building it takes 30 ms, and it needs no credential."""
    return orjson.dumps(recipe_schema())


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


async def _serving_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError), "it is registered for these"
    response = _json({"error": str(error)}, error.http_status)
    if error.retryable:
        response.headers["retry-after"] = (
            str(error.retry_after_s) if isinstance(error, RateLimitedError) else RETRY_AFTER_S
        )
    if error.http_status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is registered for these"
    if error.status_code == 405:
        wrong: ServingError = MethodNotAllowedError(
            f"{request.method} is not allowed on {request.url.path}"
        )
    else:
        wrong = UnknownPathError(f"unknown path {request.url.path}; jobs are at /v1/jobs")
    return _json({"error": str(wrong)}, wrong.http_status)


async def _our_fault(request: Request, error: Exception) -> Response:
    if refusal_in(error) is None:  # the server logs one behind the head of a response
        logger.error("a call failed", exc_info=error, extra={"path": request.url.path[:200]})
    return _json({"error": "internal error; see the service's log"}, 500)
