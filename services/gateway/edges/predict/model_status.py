"""States and metadata of models, as TensorFlow Serving and KServe's version 1 report them.

GET    /v1/models                                    the names of the models (KServe)
GET    /v1/models/M[/versions/V|/labels/L]           the states of their versions
GET    /v1/models/M[/versions/V|/labels/L]/metadata  inputs and outputs, as a signature

Source: TensorFlow Serving's "RESTful API"; metadata is `GetModelMetadataResponse` as JSON.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flambeau.protocol.tensor_spec import TensorSpec
from services.access.caller import Principal
from services.errors import NotFoundError
from services.gateway.edges.predict.predict_codec import DEFAULT_SIGNATURE
from services.gateway.edges.predict.tensor_proto import type_of
from services.queueing.directory import Directory
from services.queueing.records import ServedVersion

NAMES_AT_ONCE = 256
"""Models whose visibility is looked up in one turn of the event loop."""
SIGNATURES = "signature_def"
"""The only field of metadata."""
METHOD = "tensorflow/serving/predict"
STATES = {"ready": "AVAILABLE", "loading": "LOADING", "failed": "END", "unloaded": "END"}


class ModelStatusRoutes:
    """The routes, for an application that turns errors into responses.

    Args:
        directory: versions that are served.
        principal_of: identifies the caller of a request.
    """

    def __init__(self, directory: Directory, principal_of: Callable[[Request], Principal]) -> None:
        self._directory = directory
        self._principal_of = principal_of

    def routes(self) -> list[Route]:
        """Returns the routes."""
        calls: dict[str, Callable[[Request], Awaitable[Response]]] = {"": self._names}
        for one in ("/{model}", "/{model}/versions/{version}", "/{model}/labels/{label}"):
            calls |= {one: self._status, f"{one}/metadata": self._metadata}
        return [Route(f"/v1/models{path}", endpoint) for path, endpoint in calls.items()]

    async def _names(self, request: Request) -> Response:
        principal = self._principal_of(request)
        principal.take_request()
        names: dict[str, None] = {}
        for number, served in enumerate(self._directory.all_versions(), 1):
            if served.lane.model not in names and principal.sees(served.lane.model):
                names[served.lane.model] = None
            if number % NAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return _json({"models": list(names)})

    async def _status(self, request: Request) -> Response:
        """Answers with the states of versions; 503 if the model as a whole is not ready."""
        model, version = self._named(request)
        if version:
            told = [self._directory.find(model, version)]
            return _json({"model_version_status": list(map(_status, told))})
        self._directory.versions(model)  # an unknown model is 404
        told = sorted(self._directory.of_model(model), key=lambda one: one.lane, reverse=True)
        live = self._directory.served_lane(model)
        ready = any(one.lane == live and one.state == "ready" for one in told)
        status = {
            "name": model,
            "ready": ready,
            "model_version_status": list(map(_status, told)),
        }
        return _json(status, 200 if ready else 503)

    async def _metadata(self, request: Request) -> Response:
        model, version = self._named(request)
        served, signature = self._directory.resolve(model, version)
        spec = {"name": model, "signature_name": "", "version": str(served.lane.version)}
        found = {
            "inputs": _infos(signature.inputs),
            "outputs": _infos(signature.outputs),
            "method_name": METHOD,
        }
        metadata = {SIGNATURES: {SIGNATURES: {DEFAULT_SIGNATURE: found}}}  # twice, as its message
        return _json({"model_spec": spec, "metadata": metadata})

    def _named(self, request: Request) -> tuple[str, str]:
        """Returns the model of a path, and its version or label, for a caller that may see it.

        Raises:
            ServingError: the caller may not, or makes too many calls; or the label is a number.
        """
        model = request.path_params["model"]
        label, version = (request.path_params.get(name, "") for name in ("label", "version"))
        principal = self._principal_of(request)
        principal.require_seen(model)
        principal.take_request()
        if label.isdecimal():
            raise NotFoundError(
                f"model '{model[:128]}' has no label '{label[:128]}': a number names a version"
            )
        return model, label or version


def _infos(tensors: Sequence[TensorSpec]) -> dict[str, object]:
    return {
        tensor.name: {
            "dtype": type_of(tensor.datatype),
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in tensor.shape],
                "unknown_rank": False,
            },
            "name": tensor.name,
        }
        for tensor in tensors
    }


def _status(served: ServedVersion) -> dict[str, object]:
    has_failed = served.state == "failed"
    return {
        "version": str(served.lane.version),
        "state": STATES[served.state],
        "status": {
            "error_code": "UNKNOWN" if has_failed else "OK",
            "error_message": served.reason if has_failed else "",
        },
    }


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
