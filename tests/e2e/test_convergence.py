"""From push to answer: every server has the promoted version in two seconds plus its load time."""

import http.client
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from model_store.store import ModelStore
from tests.e2e.rest_calls import call, call_on, infer_path, linear_input
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_setups import wait_until
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import running_split

ROW = [1.0, 2.0, 3.0, 4.0]
BODY = json.dumps({"inputs": [linear_input(ROW)]}).encode()
GUARANTEED_S = 2.0
VERSIONS = 4
READY = "/v2/models/linear/ready"
RUNS: Mapping[str, Callable[..., AbstractContextManager[ServerProcess]]] = {
    "processes": running_processes,
    "split": running_split,
}


def flambeau(*arguments: str) -> None:
    done = run_flambeau(*arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    """Returns a store with versions of `linear`, each y = version * x, to push."""
    store = ModelStore(str(tmp_path_factory.mktemp("source")))
    for scale in range(1, VERSIONS + 1):
        publish(store.url, "linear", linear(scale))
    return store


def answers(server: ServerProcess) -> bool:
    return call(server, "GET", READY).status == 200


@dataclass(frozen=True)
class Deployment:
    """Servers on one store."""

    servers: list[ServerProcess]
    store: Path
    has_registry: bool

    def push(self, source: ModelStore, version: int) -> None:
        """Copies a version into the store, through a server if it has a registry."""
        place = f"http://{self.servers[0].http}" if self.has_registry else str(self.store)
        flambeau("push", f"linear/{version}", "--to", place, "--store", source.url)

    def promote(self, version: int) -> None:
        """Moves production, through a server if it has a registry."""
        if not self.has_registry:
            ModelStore(str(self.store)).promote("linear", version)
            return
        path = "/v1/registry/models/linear/aliases/production"
        body = json.dumps({"version": version, "why": "test"}).encode()
        reply = call(self.servers[0], "POST", path, body, {"content-type": "application/json"})
        assert reply.status == 200, reply.body


@pytest.fixture(
    params=[
        "one process",
        pytest.param("processes", marks=pytest.mark.long),
        pytest.param("two servers", marks=pytest.mark.long),
        "split",
    ]
)
def deployment(
    tmp_path: Path, source: ModelStore, request: pytest.FixtureRequest
) -> Iterator[Deployment]:
    """Runs servers on one store; they load a version when it is promoted, and not before."""
    (tmp_path / "store").mkdir()  # workers of a split server do not
    runs = RUNS.get(request.param, running_server)
    with ExitStack() as stack:
        found = [
            stack.enter_context(runs(tmp_path / "store", registry="open", newest_versions=0))
            for _ in range(2 if request.param == "two servers" else 1)
        ]
        deployed = Deployment(found, tmp_path / "store", request.param != "split")
        deployed.push(source, 1)
        deployed.promote(1)
        for server in found:
            server.wait_for_log(message="version ready", model="linear", version=1)
            wait_until(partial(answers, server))
        yield deployed


class Callers:
    """Clients that ask each server, without a pause, and note when a version answered first."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self._servers = servers
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self.first: dict[tuple[int, int], float] = {}
        """Monotonic second by server and version."""
        self.answers: Counter[int] = Counter()

    def ask(self, place: int) -> None:
        """Asks one server until the end; every answer must be right."""
        connection = http.client.HTTPConnection(self._servers[place].http, timeout=60)
        while not self._stop.is_set():
            reply = call_on(connection, "POST", infer_path("linear"), BODY)
            version = int(reply.json()["model_version"])
            assert reply.outputs() == {"y": [version * x for x in ROW]}
            with self._changed:
                self.answers[version] += 1
                if (place, version) not in self.first:
                    self.first[place, version] = time.monotonic()
                    self._changed.notify_all()
        connection.close()

    def wait_for(self, version: int) -> float:
        """Returns when the last server has answered with a version."""
        wanted = [(place, version) for place in range(len(self._servers))]
        with self._changed:
            assert self._changed.wait_for(lambda: all(one in self.first for one in wanted), 30)
            return max(self.first[one] for one in wanted)

    def stop(self) -> None:
        """Ends them."""
        self._stop.set()


def load_s(server: ServerProcess) -> float:
    return server.metric("flambeau_model_load_duration_seconds_sum", model="linear")


def test_promoted_version_answers_in_two_seconds_plus_its_load_time(
    deployment: Deployment, source: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = deployment.servers
    callers, beyond = Callers(servers), list[float]()
    with ThreadPoolExecutor(2 * len(servers)) as threads:
        asking = [threads.submit(callers.ask, place) for place in (*range(len(servers)),) * 2]
        try:
            for version in range(2, VERSIONS + 1):
                deployment.push(source, version)
                before = max(map(load_s, servers))
                began = time.monotonic()
                deployment.promote(version)
                took = callers.wait_for(version) - began
                beyond.append(took - (max(map(load_s, servers)) - before))
        finally:
            callers.stop()
        for one in asking:
            one.result()
    assert max(beyond) < GUARANTEED_S
    assert set(callers.answers) == set(range(1, VERSIONS + 1))
    for server in servers:
        asked = server.metric("flambeau_requests_total", model="linear")
        assert asked == server.metric("flambeau_requests_total", model="linear", code="200")
    with capsys.disabled():
        print(f" {statistics.median(beyond):.2f} s beside the load, {max(beyond):.2f} s at most")
