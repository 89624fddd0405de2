"""The repository calls: who may make them, and the index of many models."""

import time
from typing import Any

import pytest

from protos import open_inference_pb2 as pb
from services.access.caller import Principal
from services.errors import (
    ControlModeError,
    DeadlineExceededError,
    ForbiddenError,
    ServingError,
    UnknownModelError,
    UnsupportedError,
)
from services.gateway.edges.administration.repository import ENTRIES_AT_ONCE, Repository
from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion
from services.readiness import Look, Readiness
from tests.fixtures.principals import principal

STRANGER = Principal(None, "192.0.2.1")


def directory(models: int = 1) -> Directory:
    found = Directory()
    for number in range(models):
        found.announce(ServedVersion(lane=Lane(f"m{number:05}", 1), state="ready"))
    return found


async def all_of(call: Any) -> list[Any]:
    return [message async for message in call]


class Acts:
    """Notes the acts."""

    def __init__(self, error: Exception | None = None) -> None:
        self.made: list[tuple[str, str, bool]] = []
        self._error = error

    async def __call__(self, act: str, model: str, dependents: bool) -> None:
        self.made.append((act, model, dependents))
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("principal", "is_closed", "error"),
    [
        (STRANGER, False, None),
        (STRANGER, True, ForbiddenError),
        (principal("manage:m*"), True, None),
        (principal("manage"), True, None),
        (principal("infer:m*"), True, ForbiddenError),
        (principal("manage:other"), True, UnknownModelError),
        (principal("train"), True, UnknownModelError),
    ],
)
async def test_who_may_load_and_unload(
    principal: Principal, is_closed: bool, error: type[ServingError] | None
) -> None:
    acts = Acts()
    repository = Repository(directory(), control=acts, is_closed=is_closed)
    load = pb.RepositoryModelLoadRequest(model_name="m00000")
    unload = pb.RepositoryModelUnloadRequest(model_name="m00000")
    unload.parameters["unload_dependents"].bool_param = True
    for call in (repository.load(load, principal), repository.unload(unload, principal)):
        if error is None:
            assert len(await all_of(call)) == 1
        else:
            with pytest.raises(error):
                await all_of(call)
    made = [("load", "m00000", False), ("unload", "m00000", True)]
    assert acts.made == (made if error is None else [])


async def test_refusals() -> None:
    request = pb.RepositoryModelLoadRequest(model_name="m")
    with pytest.raises(ControlModeError, match=r"^explicit model load / unload is not "):
        await all_of(Repository(directory()).load(request, STRANGER))
    slow = Repository(directory(), control=Acts(TimeoutError()))
    with pytest.raises(DeadlineExceededError, match="not loaded yet after 60 s"):
        await all_of(slow.load(request, STRANGER))
    for named in (
        pb.RepositoryModelLoadRequest(repository_name="r", model_name="m"),
        pb.RepositoryIndexRequest(repository_name="r"),
    ):
        repository = Repository(directory(), control=Acts())
        call: Any = repository.load if hasattr(named, "model_name") else repository.index
        with pytest.raises(UnsupportedError, match="one repository"):
            await all_of(call(named, STRANGER))


async def test_the_index_has_what_the_caller_sees() -> None:
    served = directory(3)
    served.announce(ServedVersion(lane=Lane("m00001", 2), state="failed", reason="why"))
    served.announce(ServedVersion(lane=Lane("m00001", 3), state="unloaded"))
    readiness = Readiness()
    readiness.see(Look(unloaded=("a", "m00001x", "z")))
    repository = Repository(served, readiness)

    async def index(principal: Principal, **how: Any) -> list[tuple[str, ...]]:
        messages = await all_of(repository.index(pb.RepositoryIndexRequest(**how), principal))
        return [
            (one.name, one.version, one.state, one.reason) for m in messages for one in m.models
        ]

    assert await index(principal("infer:m00001*")) == [
        ("m00001", "1", "READY", ""),
        ("m00001", "2", "UNAVAILABLE", "why"),
        ("m00001", "3", "UNAVAILABLE", "unloaded"),
        ("m00001x", "", "UNAVAILABLE", "unloaded"),
    ]
    assert [name for name, *_ in await index(STRANGER)] == [
        "a", "m00000", "m00001", "m00001", "m00001", "m00001x", "m00002", "z",
    ]  # fmt: skip
    assert [name for name, *_ in await index(STRANGER, ready=True)] == [
        "m00000", "m00001", "m00002",
    ]  # fmt: skip


async def test_an_index_of_many_models_comes_in_parts() -> None:
    models = 10_000
    repository = Repository(directory(models))
    longest_s, parts, began = 0.0, 0, time.thread_time()
    async for part in repository.index(pb.RepositoryIndexRequest(), principal("infer:m*")):
        part.SerializeToString()
        longest_s = max(longest_s, time.thread_time() - began)
        parts, began = parts + len(part.models), time.thread_time()
        assert len(part.models) <= ENTRIES_AT_ONCE
    assert parts == models
    assert longest_s < 0.05, "the first part sorts the names"
