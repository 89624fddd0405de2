"""Jobs over REST.

POST   /v2/models/M[/versions/V]/jobs   submits the body of an inference; answers 202 and the job
GET    /v2/models/M/jobs                the model's jobs, the newest first
GET    /v2/jobs/ID[?wait=30s]           the job; with `wait`, once it finished or the wait expired
GET    /v2/jobs/ID/result               the response of the inference
DELETE /v2/jobs/ID                      cancels it
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from services.access.caller import Principal
from services.errors import (
    InvalidRequestError,
    JobFailedError,
    JobNotOverError,
    ServingError,
    UnsupportedError,
)
from services.gateway.admission import Admission, InferCall
from services.gateway.edges import rest_codec
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.jobs.job_document import job_document
from services.gateway.jobs.job_service import MAX_WAIT_S, JobOptions, JobService, check_job
from services.gateway.request_accounting import REQUEST_ID, RequestAccounting
from services.gateway.triton.classes import refuse_in_jobs
from services.queueing.job_records import OVER, Job
from services.queueing.records import InferReply
from services.wire.http1.asgi import RESERVE

IDEMPOTENCY_KEY = "idempotency-key"
"""Source: the IETF draft of this header, draft-ietf-httpapi-idempotency-key-header."""
WEBHOOK = "webhook-url"
_WAIT = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)(ms|s)?")
_OCTETS, _JSON = "application/octet-stream", "application/json"
JobCall = Callable[[JobService, Request, Principal], Awaitable[Response]]
_IN_JSON = RestRequest(inputs=())
_IN_BINARY = RestRequest(inputs=(), binary_by_default=True)


class JobRoutes:
    """The routes of jobs; without a job service each refuses: this server keeps no jobs."""

    def __init__(
        self,
        admission: Admission,
        accounting: RequestAccounting,
        service: JobService | None,
        principal_of: Callable[[Request], Principal],
    ) -> None:
        self._admission = admission
        self._principal_of = principal_of
        self._accounting = accounting
        self._service = service

    def routes(self) -> list[Route]:
        """Returns the routes, for an application that turns errors into responses."""
        calls: dict[str, dict[str, JobCall]] = {
            "/v2/models/{model}/jobs": {"POST": self._submit, "GET": self._list},
            "/v2/models/{model}/versions/{version}/jobs": {"POST": self._submit},
            "/v2/jobs/{id}": {"GET": self._find, "DELETE": self._cancel},
            "/v2/jobs/{id}/result": {"GET": self._result},
        }
        return [
            Route(path, self._at_service(by_method), methods=list(by_method))
            for path, by_method in calls.items()
        ]

    def _at_service(
        self, by_method: Mapping[str, JobCall]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if self._service is None:
                raise UnsupportedError(
                    "this server keeps no jobs: they need Redis between gateways and workers "
                    "(docs/guides/scaling.md)"
                )
            principal = self._principal_of(request)
            principal.take_request()
            method = "GET" if request.method == "HEAD" else request.method
            return await by_method[method](self._service, request, principal)

        return endpoint

    async def _submit(
        self, service: JobService, request: Request, principal: Principal
    ) -> Response:
        with self._accounting.counting_refusals():
            job, is_new = await self._hand_in(service, request, principal)
        response = await self._with_result(job, request, 202 if is_new else 200)
        response.headers["location"] = f"/v2/jobs/{job.id}"
        return response

    async def _hand_in(
        self, service: JobService, request: Request, principal: Principal
    ) -> tuple[Job, bool]:
        """Reads a job and submits it; returns as `JobService.submit`."""
        model, version = request.path_params["model"], request.path_params.get("version", "")
        principal.require("infer", model)
        signature = self._admission.directory.resolve(model, version)[1]
        header_length = request.headers.get(rest_codec.HEADER_LENGTH)
        check = partial(self._admission.check_inputs, model, version, principal.caller)
        body = (await request.receive())["body"]  # whole; `Request.body` would copy it
        wanted = rest_codec.decode(body, header_length, signature, check, request.scope[RESERVE])
        if not isinstance(wanted, RestRequest):
            wanted = await self._admission.work.run(wanted, len(body))
        del body  # bytes that no array views are released
        refuse_in_jobs(wanted.classes)
        given_id = wanted.id or request.headers.get(REQUEST_ID, "")
        call = InferCall(
            request_id=self._accounting.safe_id(given_id)
            if given_id
            else self._accounting.new_id(),
            model=model,
            version=version,
            inputs=wanted.inputs,
            outputs=wanted.outputs,
            preference=wanted.preference,
            sequence=wanted.sequence,
            caller=principal.caller,
        )
        preference = JobOptions(
            timeout_s=wanted.timeout_us / 1e6 or None,
            idempotency_key=request.headers.get(IDEMPOTENCY_KEY, ""),
            webhook=request.headers.get(WEBHOOK, ""),
        )
        return await service.submit(call, preference, request.scope[RESERVE])

    async def _list(self, service: JobService, request: Request, principal: Principal) -> Response:
        model = request.path_params["model"]
        principal.require("infer", model)
        self._admission.directory.find(model)  # unknown names are 404
        jobs = await service.jobs.of_model(model)
        return _json({"jobs": [job_document(job) for job in jobs]})

    async def _find(self, service: JobService, request: Request, principal: Principal) -> Response:
        wait_s = _wait_s(request.query_params.get("wait", "0"))
        job_id = request.path_params["id"]
        check_job(principal, job_id)
        reserve = request.scope[RESERVE]
        waiting = asyncio.ensure_future(
            service.jobs.wait(job_id, wait_s, reserve)
            if wait_s
            else service.jobs.find(job_id, reserve)
        )
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return Response()
            return await self._with_result(await waiting, request)
        finally:
            gone.cancel()
            waiting.cancel()

    async def _result(
        self, service: JobService, request: Request, principal: Principal
    ) -> Response:
        check_job(principal, request.path_params["id"])
        job = await service.jobs.find(request.path_params["id"], request.scope[RESERVE])
        if job.state not in OVER:
            raise JobNotOverError(f"job '{job.id}' is {job.state}; ask again, with ?wait=30s")
        if isinstance(job.outcome, ServingError):
            raise JobFailedError(f"job '{job.id}' failed: {job.outcome}")
        if job.outcome is None:
            raise JobNotOverError(f"job '{job.id}' is {job.state}: it has no result")
        in_binary = _OCTETS in request.headers.get("accept", "")
        form = _IN_BINARY if in_binary else _IN_JSON
        try:
            body = await self._encoded(job.outcome, form, request)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"the result of job '{job.id}' cannot be represented in JSON; ask for it with the "
                f"header 'Accept: {_OCTETS}' ({error})"
            ) from None
        response = _PartsResponse(body.parts, media_type=_OCTETS if in_binary else _JSON)
        if body.json_length is not None:
            response.headers[rest_codec.HEADER_LENGTH] = str(body.json_length)
        return response

    async def _cancel(
        self, service: JobService, request: Request, principal: Principal
    ) -> Response:
        job_id = request.path_params["id"]
        check_job(principal, job_id)
        job = await service.jobs.cancel(job_id, request.scope[RESERVE])
        return await self._with_result(job, request)

    async def _with_result(self, job: Job, request: Request, status: int = 200) -> Response:
        """Returns a job with its result as an inference's; a URL if JSON cannot hold it."""
        found = job_document(job)
        if isinstance(job.outcome, InferReply):
            try:
                body = await self._encoded(job.outcome, _IN_JSON, request)
            except InvalidRequestError:
                found["result_url"] = f"/v2/jobs/{job.id}/result"
            else:
                start = orjson.dumps(found)[:-1] + b',"result":'
                return _PartsResponse([start, *body.parts, b"}"], status)
        return _json(found, status)

    async def _encoded(
        self, reply: InferReply, form: RestRequest, request: Request
    ) -> rest_codec.RestBody:
        """Encodes a result; the request reserves the memory of a large one."""
        body = rest_codec.encode(reply, form, request.scope[RESERVE])
        return (
            body if isinstance(body, rest_codec.RestBody) else await self._admission.work.run(body)
        )


class _PartsResponse(Response):
    """A response whose parts are not joined: those of a large one view its arrays."""

    def __init__(
        self, parts: Sequence[bytes | memoryview], status: int = 200, media_type: str = _JSON
    ) -> None:
        length = {"content-length": str(sum(map(len, parts)))}
        super().__init__(status_code=status, media_type=media_type, headers=length)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends each part as a message of its own."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})


async def _disconnected(request: Request) -> None:
    """Returns once the caller has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _wait_s(text: str) -> float:
    found = _WAIT.fullmatch(text)
    if found is None:
        raise InvalidRequestError(
            f"'wait' must be a time such as 30s or 500ms, and is '{text[:40]}'"
        )
    return min(float(found[1]) / (1000 if found[2] == "ms" else 1), MAX_WAIT_S)


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type=_JSON)
