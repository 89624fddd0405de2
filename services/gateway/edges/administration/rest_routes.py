"""The calls over REST: their paths and their JSON.

GET    /v2/models/M[/versions/V]/config      the configuration of a version
GET    /v2/models/M[/versions/V]/stats       the statistics of a version, or of all of a model
GET    /v2/models/stats                      the statistics of all models
POST   /v2/repository/index                  the models of the store and their states
POST   /v2/repository/models/M/load          loads a model, where callers may
POST   /v2/repository/models/M/unload        unloads it
GET    /v2/logging, POST                     settings of logs; changes some
GET    /v2/trace/setting, POST               settings of traces; changes some
GET    /v2/models/M/trace/setting            the same, for a model
GET    /v2/KINDsharedmemory[/region/R]/status          regions of memory; KIND is system or cuda
POST   /v2/KINDsharedmemory/region/R/register, /v2/KINDsharedmemory[/region/R]/unregister
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import orjson
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protos import open_inference_pb2 as pb
from services.access.caller import Principal
from services.gateway.edges.administration.calls import AdministrationCalls
from services.gateway.edges.administration.json_bodies import (
    boolean_of,
    members,
    region_place,
    repository_parameters,
    trace_values,
)
from services.gateway.edges.administration.message_document import document_of
from services.gateway.edges.administration.shared_memory import CUDA, SYSTEM

INDEX_HEADER = "flambeau-index"
"""Header of the index: `whole`, or `partial` while the server starts and for callers who do not see
all models."""
Endpoint = Callable[[Request, Principal], Awaitable[Response]]


class AdministrationRoutes:
    """The routes, for an application that turns errors into responses.

    Args:
        calls: answers the calls.
        principal_of: identifies the caller of a request.
    """

    def __init__(
        self, calls: AdministrationCalls, principal_of: Callable[[Request], Principal]
    ) -> None:
        self._calls = calls
        self._memory_calls = calls.calls()
        self._principal_of = principal_of

    def routes(self) -> list[Route]:
        """Returns the routes."""
        of_version = {"config": self._config, "stats": self._statistics}
        return [
            Route("/v2/models/stats", self._for_caller(self._statistics)),
            *(
                Route(f"/v2/repository/{path}", self._for_caller(endpoint), methods=["POST"])
                for path, endpoint in (
                    ("index", self._index),
                    ("models/{model}/load", self._load),
                    ("models/{model}/unload", self._unload),
                )
            ),
            *(
                Route(f"/v2/{path}", self._for_caller(endpoint), methods=["GET", "POST"])
                for path, endpoint in (
                    ("logging", self._logs),
                    ("trace/setting", self._traces),
                    ("models/{model}/trace/setting", self._traces),
                )
            ),
            *self._shared_memory_routes(),
            *(
                Route(f"/v2/models/{{model}}{version}/{suffix}", self._for_caller(endpoint))
                for version in ("", "/versions/{version}")
                for suffix, endpoint in of_version.items()
            ),
        ]

    def _shared_memory_routes(self) -> list[Route]:
        found = []
        for kind in (SYSTEM, CUDA):
            for act, region, method in (
                ("status", "", "GET"),
                ("status", "/region/{name}", "GET"),
                ("unregister", "", "POST"),
                ("unregister", "/region/{name}", "POST"),
                ("register", "/region/{name}", "POST"),
            ):
                call = f"{kind.capitalize()}SharedMemory{act.capitalize()}"
                endpoint = partial(self._shared_memory, call)
                path = f"/v2/{kind}sharedmemory{region}/{act}"
                found.append(Route(path, self._for_caller(endpoint), methods=[method]))
        return found

    def _for_caller(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            principal = self._principal_of(request)
            principal.take_request()
            return await endpoint(request, principal)

        return answer

    async def _config(self, request: Request, principal: Principal) -> Response:
        asked = pb.ModelConfigRequest(name=_model(request), version=_version(request))
        (said,) = [message async for message in self._calls.config(asked, principal)]
        assert isinstance(said, pb.ModelConfigResponse)
        return _json(orjson.dumps(document_of(said.config)))

    async def _statistics(self, request: Request, principal: Principal) -> Response:
        asked = pb.ModelStatisticsRequest(name=_model(request), version=_version(request))
        found = []
        async for said in self._calls.statistics(asked, principal):
            assert isinstance(said, pb.ModelStatisticsResponse)
            found += [orjson.dumps(document_of(one)) for one in said.model_stats]
            await asyncio.sleep(0)
        return _json(b'{"model_stats":[%b]}' % b",".join(found))

    async def _index(self, request: Request, principal: Principal) -> Response:
        ready = boolean_of(members(await _body(request)), "ready")
        found: list[bytes] = []
        is_whole = self._calls.repository.is_whole(principal)
        asked = pb.RepositoryIndexRequest(ready=ready)
        async for said in self._calls.repository.index(asked, principal):
            found += [_entry(one) for one in said.models]
            await asyncio.sleep(0)
        response = _json(b"[%b]" % b",".join(found))
        response.headers[INDEX_HEADER] = "whole" if is_whole else "partial"
        return response

    async def _load(self, request: Request, principal: Principal) -> Response:
        parameters = repository_parameters(members(await _body(request)))
        asked = pb.RepositoryModelLoadRequest(model_name=_model(request), parameters=parameters)
        return await _done(self._calls.repository.load(asked, principal))

    async def _unload(self, request: Request, principal: Principal) -> Response:
        parameters = repository_parameters(members(await _body(request)))
        asked = pb.RepositoryModelUnloadRequest(model_name=_model(request), parameters=parameters)
        return await _done(self._calls.repository.unload(asked, principal))

    async def _logs(self, request: Request, principal: Principal) -> Response:
        settings = self._calls.settings
        if request.method == "POST" and (given := members(await _body(request))):
            await settings.set_logs(given, principal)
        return _json(orjson.dumps(settings.logs()))

    async def _traces(self, request: Request, principal: Principal) -> Response:
        given = {}
        if request.method == "POST":
            given = trace_values(members(await _body(request)))
        asked = pb.TraceSettingRequest(model_name=_model(request))
        for name, values in given.items():
            asked.settings[name].value.extend(values)
        (said,) = [message async for message in self._calls.trace_settings(asked, principal)]
        assert isinstance(said, pb.TraceSettingResponse)
        levels = {name: list(setting.value) for name, setting in said.settings.items()}
        found = {n: v if n == "trace_level" else v[0] for n, v in sorted(levels.items())}
        return _json(orjson.dumps(found))

    async def _shared_memory(self, name: str, request: Request, principal: Principal) -> Response:
        """Answers one of the calls; regions are a list."""
        call, kind = self._memory_calls[name]
        asked = kind(name=request.path_params.get("name", ""))
        if isinstance(asked, pb.SystemSharedMemoryRegisterRequest):
            self._calls.system_memory.registrar(asked.name)  # before the body is read
            asked.key, asked.offset, asked.byte_size = region_place(members(await _body(request)))
        if not name.endswith("Status"):
            return await _done(call(asked, principal))
        found: list[object] = []
        async for said in call(asked, principal):
            if isinstance(said, pb.SystemSharedMemoryStatusResponse):
                found += map(document_of, said.regions.values())
                await asyncio.sleep(0)
        return _json(orjson.dumps(found))


def _entry(model: pb.RepositoryIndexResponse.ModelIndex) -> bytes:
    """Formats an entry of the index; what is empty is left out, as by Triton."""
    return orjson.dumps({name: text for name, text in document_of(model).items() if text})


async def _done(call: AsyncIterator[Message]) -> Response:
    """Carries out a call whose response is empty."""
    async for _ in call:
        pass
    return Response()


async def _body(request: Request) -> bytes:
    """Returns the body, which has come already."""
    found: bytes = (await request.receive())["body"]
    return found


def _model(request: Request) -> str:
    found: str = request.path_params.get("model", "")
    return found


def _version(request: Request) -> str:
    found: str = request.path_params.get("version", "")
    return found


def _json(document: bytes) -> Response:
    return Response(document, media_type="application/json")
