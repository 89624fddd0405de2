"""TorchServe's management, whatever the protocol: its calls, documents and words.

In: calls with parsed parameters. Out: a `Said`, code and document as TorchServe 0.12 answers them;
or a `RefusedError`.

Source: the answers of TorchServe 0.12.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from model_store.archives.handler_calls import HandlerRequest
from model_store.archives.registrations import (
    RegisteredModel,
    RegisteredVersion,
    Registrations,
)
from model_store.archives.server_properties import ServerProperties
from model_store.errors import ModelArchiveError
from services.errors import BackendError, ServingError
from services.gateway.torchserve.archive_registry import RETRIED_FOR_S, ArchiveRegistry
from services.gateway.torchserve.archive_source import ArchiveSource
from services.gateway.torchserve.predictions import DESCRIBE, Predictions
from services.gateway.torchserve.refusals import (
    DEFAULT_VERSION,
    INTERNAL,
    INVALID_MODEL,
    METHOD_NOT_ALLOWED,
    NO_SUCH_METHOD,
    VERSION_NOT_FOUND,
    Refusal,
    RefusedError,
    bad_request,
    caller_words,
    model_not_found,
    no_worker,
    refusal_of,
    version_not_found,
)
from services.gateway.torchserve.register_request import RegisterRequest, most_sequences
from services.gateway.torchserve.registered_versions import WorkersError, is_ready

ALL = "all"
"""In place of a version: all of them."""
USUAL_LIMIT = 100
RUNTIMES = ("python", "python3", "LSP")
ACCEPTED = "Processing worker updates..."

T = TypeVar("T")


class Said(NamedTuple):
    """An answer."""

    code: int
    """Status of HTTP."""
    document: Any
    """A value of JSON."""

    @property
    def text(self) -> str:
        """The document as TorchServe prints it; empty for none."""
        if self.document is None:
            return ""
        return json.dumps(self.document, indent=2, ensure_ascii=False)


def status(text: str, code: int = 200) -> Said:
    """Returns an answer of one sentence."""
    return Said(code, {"status": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Registering:
    """Parameters of a registration; None where the caller gave none."""

    url: str | None = None
    model_name: str | None = None
    runtime: str | None = None
    handler: str | None = None
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    initial_workers: int | None = None
    response_timeout_s: int | None = None
    startup_timeout_s: int | None = None
    is_synchronous: bool = False
    at_start: bool = False
    """True for the models that the server registers itself."""


class Management:
    """The calls of management.

    Args:
        registry: the registered archives.
        predictions: asks handlers to describe themselves.
        source: finds archives.
        properties: settings of the server.
        is_leaving: True while the server drains.
    """

    def __init__(
        self,
        registry: ArchiveRegistry,
        predictions: Predictions,
        source: ArchiveSource,
        properties: ServerProperties,
        is_leaving: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._predictions = predictions
        self._source = source
        self._properties = properties
        self._is_leaving = is_leaving

    def check_model_api(self) -> None:
        """Checks that callers may register and unregister models.

        Raises:
            RefusedError: they may not; it precedes all other errors.
        """
        if not self._properties.enable_model_api:
            raise RefusedError(Refusal(405, METHOD_NOT_ALLOWED, NO_SUCH_METHOD))

    def ping(self) -> Said:
        """Returns whether no model is without its workers for too long."""
        is_healthy = self._registry.are_served() and not self._is_leaving()
        return status("Healthy") if is_healthy else status("Unhealthy", 500)

    async def register(self, asked: Registering, caller_left: asyncio.Event | None = None) -> Said:
        """Registers an archive.

        Args:
            asked: parameters of the call.
            caller_left: as for `ArchiveSource.found`.

        Raises:
            RefusedError: it is not found, cannot be registered, or its workers do not start.
        """
        if asked.url is None:
            raise bad_request("Parameter url is required.")
        for name in ("url", "model_name", "runtime", "handler"):
            _check_text(name, getattr(asked, name))
        if asked.runtime is not None and asked.runtime not in RUNTIMES:
            raise bad_request(f"Invalid RuntimeType value: {asked.runtime[:200]}")
        async with self._source.found(asked.url, caller_left) as archive:
            request = RegisterRequest(
                archive=archive,
                url=asked.url,
                model_name=asked.model_name or None,
                handler=asked.handler or None,
                batch_size=asked.batch_size,
                max_batch_delay_ms=asked.max_batch_delay_ms,
                initial_workers=asked.initial_workers,
                response_timeout_s=asked.response_timeout_s,
                startup_timeout_s=asked.startup_timeout_s,
                at_start=asked.at_start,
            )
            done = await _worded(self._registry.register(request, waits=asked.is_synchronous))
        named = f'Model "{done.name}" Version: {done.version} registered with'
        if not done.workers:
            return status(
                f"{named} 0 initial workers. Use scale workers API to add workers for the model."
            )
        if not asked.is_synchronous:
            return status(ACCEPTED, 202)
        return status(f"{named} {done.workers} initial workers")

    async def scale(
        self,
        name: str,
        version: str = "",
        least: int = 1,
        most: int | None = None,
        *,
        is_synchronous: bool = False,
    ) -> Said:
        """Changes the number of a version's workers.

        Args:
            name: name of the model.
            version: a version; empty for the default one.
            least: number of workers.
            most: largest number; None for the same.
            is_synchronous: True to wait until they are ready.

        Raises:
            RefusedError: it is not registered, a number is wrong, or they do not start.
        """
        if most is not None and most < least:
            raise bad_request("max_worker cannot be less than min_worker.")
        await self._named(name, version)
        work = self._registry.scale(name, version, least, most, waits=is_synchronous)
        scaled = await _worded(work)
        if not is_synchronous:
            return status(ACCEPTED, 202)
        words = f"Workers scaled to {least} for model: {name}"
        return status(f"{words}, version: {scaled}" if version else words)

    async def list(self, limit: int = USUAL_LIMIT, page: int = 0) -> Said:
        """Returns the registered models in the order of their names.

        Args:
            limit: most models of the answer; 100 in place of a larger or negative one.
            page: number of models to leave out; 0 in place of a negative one.
        """
        limit = limit if 0 <= limit <= USUAL_LIMIT else USUAL_LIMIT
        first = max(0, page)
        registered = (await self._registrations()).models
        names = sorted(registered)
        last = min(first + limit, len(names))
        document: dict[str, Any] = {}
        if first + limit <= len(names):
            document["nextPageToken"] = str(last)
        document["models"] = [
            {"modelName": name, "modelUrl": _default_of(registered[name]).url}
            for name in names[first:last]
        ]
        return Said(200, document)

    async def describe(
        self,
        name: str,
        version: str = "",
        *,
        is_customized: bool = False,
        request: HandlerRequest | None = None,
    ) -> Said:
        """Returns facts of a model's versions.

        Args:
            name: name of the model.
            version: a version, `all`, or empty for the default one.
            is_customized: True to ask its handler, too.
            request: id and headers of the call, for the handler.

        Raises:
            RefusedError: it is not registered, or its handler failed.
        """
        if version == ALL:
            model = await self._named(name)
            return Said(200, [self._facts(name, one, model) for one in sorted(model.versions)])
        if is_customized:
            return await self._customized(name, version, request or HandlerRequest())
        model = await self._named(name, version)
        return Said(200, [self._facts(name, version or model.default, model)])

    async def is_model_ready(self, name: str) -> Said:
        """Returns whether a model has workers, in the form of KServe's version 1.

        Raises:
            RefusedError: it is not registered.
        """
        model = await self._named(name)
        return Said(200, {"name": name, "ready": _default_of(model).min_workers > 0})

    async def set_default(self, name: str, version: str) -> Said:
        """Makes a version the one of requests without a version.

        Raises:
            RefusedError: it is not registered.
        """
        try:
            await _worded(self._registry.set_default(name, version))
        except RefusedError as error:
            if error.refusal.kind != VERSION_NOT_FOUND:
                raise
            words = f"Model version {version[:1000]} does not exist for model {name}"
            raise RefusedError(Refusal(404, VERSION_NOT_FOUND, words)) from error
        return status(f'Default version successfully updated for model "{name}" to "{version}"')

    async def unregister(self, name: str, version: str = "") -> Said:
        """Unregisters a version; accepted requests are answered.

        Raises:
            RefusedError: it is not registered, or the default one beside others.
        """
        model = await self._named(name, version)
        if (version or model.default) == model.default and len(model.versions) > 1:
            words = f"Cannot remove default version for model {name}"
            raise RefusedError(Refusal(403, DEFAULT_VERSION, words))
        await _worded(self._registry.unregister(name, version))
        return status(f'Model "{name}" unregistered')

    async def _named(self, name: str, version: str = "") -> RegisteredModel:
        model = (await self._registrations(name)).models.get(name)
        if model is None:
            raise model_not_found(name)
        if version and version not in model.versions:
            raise version_not_found(name, version)
        return model

    async def _registrations(self, name: str = "") -> Registrations:
        return await _worded(self._registry.registrations(name))

    async def _customized(self, name: str, version: str, request: HandlerRequest) -> Said:
        model = await self._named(name, version)
        version = version or model.default
        if not is_ready(self._registry.served(name, model.versions[version])):
            raise no_worker(name, what="describe")
        headers = {**request.headers, DESCRIBE: "True"}
        answer = await self._predictions.ask(name, version, replace(request, headers=headers))
        facts = self._facts(name, version, model)
        if answer.body:
            facts["customizedMetadata"] = _mapping(bytes(answer.body))
        return Said(answer.status, [facts])

    def _facts(self, name: str, version: str, model: RegisteredModel) -> dict[str, Any]:
        one = model.versions[version]
        served = self._registry.served(name, one)
        state = "READY" if is_ready(served) else "UNLOADING"
        worker = {
            "startTime": _time(one.started_at),
            "status": state,
            "memoryUsage": 0,
            "pid": -1,
            "gpu": one.device_type == "gpu",
            "gpuUsage": "N/A",
        }
        return {
            "modelName": name,
            "modelVersion": version,
            "modelUrl": one.url,
            "runtime": one.runtime,
            "minWorkers": one.min_workers,
            "maxWorkers": one.max_workers,
            "batchSize": one.batch_size,
            "maxBatchDelay": one.max_batch_delay_ms,
            "responseTimeout": one.response_timeout_s,
            "startupTimeout": one.startup_timeout_s,
            "maxRetryTimeoutInSec": RETRIED_FOR_S,
            "clientTimeoutInMills": one.client_timeout_ms,
            "parallelType": "",
            "parallelLevel": 0,
            "deviceType": one.device_type or "cpu",
            "continuousBatching": False,
            "useJobTicket": False,
            "useVenv": False,
            "stateful": one.sequence_idle_ms > 0,
            "sequenceMaxIdleMSec": one.sequence_idle_ms,
            "sequenceTimeoutMSec": one.sequence_timeout_ms,
            "maxNumSequence": most_sequences(one),
            "maxSequenceJobQueueSize": one.sequence_queue_size,
            "loadedAtStartup": one.at_start,
            "workers": [
                {"id": str(_FIRST_WORKER + place), **worker} for place in range(one.min_workers)
            ],
            "jobQueueStatus": {"remainingCapacity": one.job_queue_size, "pendingRequests": 0},
        }


_FIRST_WORKER = 9000
"""Ids of TorchServe's workers are ports that begin here."""


def _check_text(name: str, value: str | None) -> None:
    """Refuses a text that no file and no answer can have: JSON may name half a character."""
    if value is not None and any("\ud800" <= one <= "\udfff" for one in value):
        raise bad_request(f"Parameter {name} is {value[:200]!a}, which is no text; send UTF-8.")


def _default_of(model: RegisteredModel) -> RegisteredVersion:
    return model.versions[model.default]


def _mapping(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _time(seconds: float) -> str:
    whole, part = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{part:03d}Z"


async def _worded(work: Awaitable[T]) -> T:
    """Awaits work of the registry; its errors are TorchServe's."""
    try:
        return await work
    except RefusedError:
        raise
    except WorkersError as error:
        raise RefusedError(Refusal(500, INTERNAL, error.words)) from error
    except BackendError as error:
        raise RefusedError(Refusal(500, INTERNAL, caller_words(str(error)))) from error
    except ServingError as error:
        refusal = refusal_of(error)
        if isinstance(error.__cause__, ModelArchiveError):
            refusal = refusal._replace(kind=INVALID_MODEL)
        raise RefusedError(refusal) from error
