"""The controller follows the API: lists, watches, and failures of either side; and as a process."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flambeau.registry.errors import RegistryAwayError
from services.kubernetes.controller import FIRST_PAUSE_S, PAUSE_S, ModelRolloutController, pause_s
from services.kubernetes.model_rollout import GROUP_VERSION, PLURAL
from services.kubernetes.object_api import (
    GONE,
    PAGE,
    ClusterSettings,
    KubernetesError,
    ObjectApi,
    WatchStop,
)
from tests.fixtures.object_api_server import ObjectApiServer, account_in, object_api_server
from tests.fixtures.servers import Lines

WAIT_S = 120.0


@pytest.fixture
def server() -> Iterator[ObjectApiServer]:
    with object_api_server() as server:
        yield server


@pytest.fixture
def objects(server: ObjectApiServer, tmp_path: Path) -> ObjectApi:
    account = str(account_in(tmp_path / "account"))
    settings = ClusterSettings(kubernetes_url=server.url, kubernetes_account=account)
    return ObjectApi(settings, GROUP_VERSION, PLURAL)


class Looks:
    """Records which objects are looked at, in place of looking.

    Attributes:
        later_s: seconds that each look asks for.
        faults: errors of the next looks.
        troubles: what was told in objects.
        tells: writes the status of an object.
    """

    def __init__(self) -> None:
        self.looked: asyncio.Queue[str] = asyncio.Queue()
        self.later_s: float | None = None
        self.faults: list[Exception] = []
        self.troubles: list[tuple[str, str]] = []
        self.tells: Callable[[], object] = lambda: None
        self._loop = asyncio.get_running_loop()

    def look(self, name: str) -> float | None:
        if self.faults:
            raise self.faults.pop(0)
        self._loop.call_soon_threadsafe(self.looked.put_nowait, name)
        return self.later_s

    def tell(self, name: str, trouble: str) -> None:
        self.troubles.append((name, trouble))
        self.tells()

    async def names(self, count: int) -> set[str]:
        """Returns the names of the next looks."""
        async with asyncio.timeout(WAIT_S):
            return {await self.looked.get() for _ in range(count)}


@contextlib.asynccontextmanager
async def controlling(objects: ObjectApi, looks: Looks) -> AsyncIterator[ModelRolloutController]:
    reconciliation: Any = looks
    controller, asked = ModelRolloutController(objects, reconciliation), asyncio.Event()
    running = asyncio.create_task(controller.run(asked))
    try:
        yield controller
    finally:
        asked.set()
        async with asyncio.timeout(WAIT_S):
            await running


async def test_objects_are_looked_at_when_they_are_listed_made_and_changed(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    server.apply("one", model="a", version=1)
    server.apply("two", model="b", version=1)
    looks = Looks()
    async with controlling(objects, looks) as controller:
        assert await looks.names(2) == {"one", "two"}
        assert controller.why_not_ready == ""
        server.apply("three", model="c", version=1)
        assert await looks.names(1) == {"three"}
        server.apply("one", version=2)
        assert await looks.names(1) == {"one"}
        server.delete("two")
        assert await looks.names(1) == {"two"}


async def test_a_status_that_is_written_makes_no_object_due(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    server.apply("one", model="a", version=1)
    looks = Looks()
    async with controlling(objects, looks):
        await looks.names(1)
        found = objects.set_finalizers(server.apply("one"), ["flambeau.dev/rollout"])
        objects.set_status(found, {"phase": "Running"})
        server.apply("two", model="b", version=1)
        assert await looks.names(1) == {"two"}
        server.delete("one")
        assert await looks.names(1) == {"one"}
    assert looks.looked.empty()


async def test_a_look_that_failed_is_repeated_after_pauses_that_its_status_does_not_shorten(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    server.apply("one", model="a", version=1)
    looks = Looks()
    looks.faults = [RegistryAwayError("away"), RegistryAwayError("away")]
    looks.tells = lambda: objects.set_status(server.apply("one"), {"phase": "Pending"})
    began = asyncio.get_running_loop().time()
    async with controlling(objects, looks):
        await looks.names(1)
    assert asyncio.get_running_loop().time() - began >= pause_s(0) + pause_s(1)


async def test_a_look_that_asks_for_another_gets_it(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    server.apply("one", model="a", version=1)
    looks = Looks()
    looks.later_s = 0.01
    async with controlling(objects, looks):
        assert await looks.names(5) == {"one"}


async def test_a_state_that_the_api_no_longer_has_is_listed_again(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    server.apply("one", model="a", version=1)
    looks = Looks()
    async with controlling(objects, looks) as controller:
        await looks.names(1)
        server.compact()
        assert await looks.names(1) == {"one"}
        assert controller.why_not_ready == ""
        server.apply("two", model="b", version=1)
        assert "two" in await looks.names(1)


@pytest.mark.parametrize("refusal", [0, 401, 403, 500])
async def test_an_api_that_refuses_at_first_is_asked_again(
    server: ObjectApiServer, objects: ObjectApi, refusal: int
) -> None:
    server.apply("one", model="a", version=1)
    server.refusals = [refusal]
    looks = Looks()
    async with controlling(objects, looks) as controller:
        assert controller.why_not_ready
        assert await looks.names(1) == {"one"}
        assert controller.why_not_ready == ""


async def test_a_look_that_failed_is_repeated_and_the_object_says_why(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    server.apply("one", model="a", version=1)
    looks = Looks()
    looks.faults = [
        RegistryAwayError("no answer from http://registry"),
        KubernetesError("another writer", 409),
    ]
    async with controlling(objects, looks):
        assert await looks.names(1) == {"one"}
    assert looks.troubles == [("one", "no answer from http://registry")]


async def test_it_stops_while_a_watch_is_silent(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    server.apply("one", model="a", version=1)
    looks = Looks()
    async with asyncio.timeout(WAIT_S):
        async with controlling(objects, looks):
            await looks.names(1)


def test_pauses_double_up_to_a_minute() -> None:
    pauses = [pause_s(failures) for failures in range(20)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == max(pauses) == PAUSE_S
    assert pause_s(100_000) == PAUSE_S


def test_a_long_list_is_read_in_pages(server: ObjectApiServer, objects: ObjectApi) -> None:
    names = {f"number-{number}" for number in range(PAGE + 5)}
    for name in names:
        server.apply(name, model="a", version=1)
    found, version = objects.list()
    assert {one["metadata"]["name"] for one in found} == names
    assert len(server.calls) == 2
    assert list(objects.watch(version, 0, WatchStop()))[-1]["type"] == "BOOKMARK"


def test_a_watch_from_an_old_state_is_refused(server: ObjectApiServer, objects: ObjectApi) -> None:
    server.apply("one", model="a", version=1)
    _, version = objects.list()
    server.compact()
    with pytest.raises(KubernetesError, match="too old resource version") as refused:
        list(objects.watch(version, 5, WatchStop()))
    assert refused.value.status == GONE


def test_a_watch_that_was_stopped_before_does_not_wait(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    stop = WatchStop()
    stop.set()
    assert list(objects.watch("100", 60, stop)) == []


def test_a_status_of_an_older_state_is_a_conflict(
    server: ObjectApiServer, objects: ObjectApi
) -> None:
    old = server.apply("one", model="a", version=1)
    server.apply("one", version=2)
    with pytest.raises(KubernetesError) as refused:
        objects.set_status(old, {"phase": "Running"})
    assert refused.value.status == 409
    server.delete("one")
    newer = server.apply("one", model="a", version=1)
    assert newer["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-m", "services.kubernetes", "--metrics-port=0", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip


def test_the_process_is_ready_with_the_api_and_ends_with_0(
    server: ObjectApiServer, tmp_path: Path
) -> None:
    server.apply("one", model="a", version=1)
    account = account_in(tmp_path / "account")
    # Nothing listens at the registry's port.
    process = start(f"--kubernetes-url={server.url}", f"--kubernetes-account={account}",
                    "--registry=http://127.0.0.1:9")  # fmt: skip
    assert process.stderr is not None
    log = Lines(process.stderr)
    try:
        told = json.loads(log.wait_for(lambda line: '"metrics_port"' in line))
        found = server.await_object(
            "one", lambda one: "no answer from" in str((one or {}).get("status"))
        )
        assert found is not None
        assert found["status"]["phase"] == "Pending"
        url = f"http://127.0.0.1:{told['metrics_port']}"
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=10) as reply:
            assert reply.status == 200
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
            assert b"flambeau_build_info" in reply.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, log.all()
    finally:
        process.kill()
        process.wait()
        log.join()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--registry=nowhere"], "names no registry"),
        (["--registry=http://r"], "give kubernetes_namespace"),
        (["--registry=http://r", "--registri=x"], "did you mean '--registry'"),
        ([], "--registry is required"),
    ],
)
def test_wrong_settings_end_it_with_words(tmp_path: Path, arguments: list[str], words: str) -> None:
    account = tmp_path if "namespace" in words else account_in(tmp_path / "account")
    process = start(*arguments, f"--kubernetes-account={account}")
    _, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, words in errors) == (2, True), errors
