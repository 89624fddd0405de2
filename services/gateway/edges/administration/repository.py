"""The repository calls: the models of the store and their states; loading and unloading them.

In: requests and their callers. Out: entries of the index, a part of it at a time; the outcome of
acts. Acts are audited, and need the scope `manage` on the model.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from protos import open_inference_pb2 as pb
from services.access.audit import audited
from services.access.caller import Principal
from services.access.grants import ALL_MODELS
from services.errors import (
    ControlModeError,
    DeadlineExceededError,
    ForbiddenError,
    InvalidRequestError,
    UnsupportedError,
)
from services.queueing.directory import Directory
from services.queueing.records import ServedVersion
from services.readiness import Readiness

ActOnModel = Callable[[str, str, bool], Awaitable[None]]
"""Loads or unloads a model, with the models of its pipeline or without."""
ENTRIES_AT_ONCE = 64
"""Entries of the index in one turn of the event loop, some 0.2 ms."""
MAX_NAME = 128
"""Characters of a model's name in a message."""
DEPENDENTS = "unload_dependents"
NOT_EXPLICIT = (
    "explicit model load / unload is not allowed if polling is enabled: the models of this server "
    "follow their pointers (flambeau models promote), and it was not started with "
    "model_control=explicit"
)
"""Begins with Triton's words."""

_STATES = {"ready": "READY", "loading": "LOADING", "failed": "UNAVAILABLE",
           "unloaded": "UNAVAILABLE"}  # fmt: skip


def require_management(principal: Principal, model: str, is_closed: bool) -> None:
    """Checks that a caller may manage a model.

    Args:
        principal: the caller.
        model: name of the model; `*` for the server.
        is_closed: True where no call needs a credential, and other machines reach the server.

    Raises:
        ForbiddenError: the caller lacks the scope, or would need a credential.
        UnknownModelError: the caller does not see the model.
    """
    if principal.caller is None and is_closed:
        raise ForbiddenError(
            "management needs a credential, as other machines reach this server; set api_keys_file "
            "or jwt_keys (docs/guides/security.md)"
        )
    if principal.caller is not None and model != ALL_MODELS:
        principal.caller.require("manage", model)
    elif principal.caller is not None and not principal.caller.may("manage", ALL_MODELS):
        raise ForbiddenError(
            f"{principal.name} does not have the scope 'manage' on all models, which settings of "
            "the server need; ask the operator for it"
        )


class Repository:
    """Answers the repository calls.

    Args:
        directory: versions that are served, or are not, with the reasons.
        readiness: has the models that are not loaded.
        control: loads and unloads models; None where callers may not.
        timeout_s: time for a load.
        is_closed: see `require_management`.
        as_triton: True for Triton's words.
    """

    def __init__(
        self,
        directory: Directory,
        readiness: Readiness | None = None,
        control: ActOnModel | None = None,
        *,
        timeout_s: float = 60.0,
        is_closed: bool = False,
        as_triton: bool = False,
    ) -> None:
        self._directory = directory
        self._readiness = readiness
        self._control = control
        self._timeout_s = timeout_s
        self.is_closed, self._as_triton = is_closed, as_triton

    async def index(
        self, request: pb.RepositoryIndexRequest, principal: Principal
    ) -> AsyncIterator[pb.RepositoryIndexResponse]:
        """Yields the versions of the models that the caller sees, and their states."""
        self._check_repository(request.repository_name)
        response = pb.RepositoryIndexResponse()
        known: Iterable[ServedVersion | str] = self._directory.all_versions()
        unloaded: Iterable[ServedVersion | str] = ()
        if self._readiness is not None and not request.ready:
            unloaded = self._readiness.look.unloaded
        entries: Iterator[ServedVersion | str] = heapq.merge(known, unloaded, key=_place)
        for number, entry in enumerate(entries, 1):
            model = entry if isinstance(entry, str) else entry.lane.model
            if principal.sees(model):
                if isinstance(entry, str):
                    response.models.add(name=entry, state="UNAVAILABLE", reason="unloaded")
                elif entry.state == "ready" or not request.ready:
                    _add(response, entry)
            if number % ENTRIES_AT_ONCE == 0:
                yield response
                response = pb.RepositoryIndexResponse()
        yield response

    def is_whole(self, principal: Principal) -> bool:
        """Returns True if the index has all versions: none is hidden, or not announced yet."""
        return self._directory.complete and principal.sees_all()

    async def load(
        self, request: pb.RepositoryModelLoadRequest, principal: Principal
    ) -> AsyncIterator[pb.RepositoryModelLoadResponse]:
        """Loads a model, and yields the response once it is ready."""
        self._check_repository(request.repository_name)
        for name in request.parameters:
            if name == "config" or name.startswith("file:"):
                raise UnsupportedError(
                    f"a model cannot be loaded with the parameter '{name[:MAX_NAME]}': versions of "
                    "the store are immutable; publish another version, and leave the parameter out"
                )
        _check_parameters(request.parameters, ())
        await self._act("load", request.model_name, False, principal)
        yield pb.RepositoryModelLoadResponse()

    async def unload(
        self, request: pb.RepositoryModelUnloadRequest, principal: Principal
    ) -> AsyncIterator[pb.RepositoryModelUnloadResponse]:
        """Unloads a model, and yields the response once it takes no more requests."""
        self._check_repository(request.repository_name)
        _check_parameters(request.parameters, (DEPENDENTS,))
        dependents = request.parameters.get(DEPENDENTS)
        if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidRequestError(f"the parameter '{DEPENDENTS}' must be true or false")
        with_dependents = dependents is not None and dependents.bool_param
        await self._act("unload", request.model_name, with_dependents, principal)
        yield pb.RepositoryModelUnloadResponse()

    def _check_repository(self, name: str) -> None:
        if name:
            raise UnsupportedError(
                "'repository_name' specification is not supported"
                if self._as_triton
                else f"this server has one repository, and none named '{name[:MAX_NAME]}'; leave "
                "repository_name out"
            )

    async def _act(self, act: str, model: str, dependents: bool, principal: Principal) -> None:
        with audited(act, model, principal.name, principal.peer):
            require_management(principal, model, self.is_closed)
            if self._control is None:
                raise ControlModeError(NOT_EXPLICIT)
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._control(act, model[:MAX_NAME], dependents)
            except TimeoutError:
                raise DeadlineExceededError(
                    f"model '{model[:MAX_NAME]}' is not {act}ed yet after {self._timeout_s:g} s "
                    f"(request_timeout_s); the {act} goes on"
                ) from None


def _place(entry: ServedVersion | str) -> tuple[str, int]:
    return (entry, 0) if isinstance(entry, str) else (entry.lane.model, entry.lane.version)


def _add(response: pb.RepositoryIndexResponse, served: ServedVersion) -> None:
    response.models.add(
        name=served.lane.model,
        version=str(served.lane.version),
        state=_STATES[served.state],
        reason=served.reason or ("unloaded" if served.state == "unloaded" else ""),
    )


def _check_parameters(parameters: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in parameters:
        if name not in known:
            names = f"the only one is '{known[0]}'" if known else "there is none"
            raise InvalidRequestError(f"unknown parameter '{name[:MAX_NAME]}'; {names}")
