"""Moving pointers under a running server, and its shutdown."""

import http.client
import json
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from model_store.store import ModelStore
from tests.e2e.grpc_calls import TIMEOUT_S, error_of, linear_request, lookup_request, outputs
from tests.e2e.rest_calls import call, call_on, infer, infer_path, linear_input, lookup_inputs
from tests.fixtures.onnx_models import linear, publish, slow_lookup
from tests.fixtures.redis_setups import wait_until
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.store_versions import rollback
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

ROW = [1.0, 2.0, 3.0, 4.0]
SWITCH_S = 2.0
"""Guaranteed time until a moved pointer takes effect."""


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns versions 1, 2 and 3 of `linear`, each y = version * x, and production on 1."""
    store = ModelStore(str(tmp_path))
    for scale in (1, 2, 3):
        publish(store.url, "linear", linear(scale))
    store.promote("linear", 1)
    return store


@pytest.fixture
def server(store: ModelStore) -> Iterator[ServerProcess]:
    """Loads only pointed-to versions, so that every move loads, switches and unloads."""
    with running_server(Path(store.url), newest_versions=0) as server:
        yield server


def live_version(server: ServerProcess) -> int:
    """Returns the version that answers a request without one; checks its numbers."""
    reply = infer(server, "linear", linear_input(ROW))
    version = int(reply.json()["model_version"])
    assert reply.outputs() == {"y": [version * x for x in ROW]}
    return version


def switches_in_time(server: ServerProcess, version: int) -> None:
    """Polls with requests: the time seen by clients counts."""
    started = time.monotonic()
    while live_version(server) != version:
        assert time.monotonic() - started < SWITCH_S, f"version {version} is not live yet"


def test_production_decides_and_a_version_can_be_named(store: ModelStore) -> None:
    with (
        running_server(Path(store.url)) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub: Any = GRPCInferenceServiceStub(channel)
        for named, expected in (("", "1"), ("1", "1"), ("2", "2"), ("3", "3")):
            reply = infer(server, "linear", linear_input(ROW), version=named).json()
            response = stub.ModelInfer(linear_request(ROW, model_version=named))
            assert reply["model_version"] == response.model_version == expected


def test_moved_pointer_takes_effect_within_two_seconds(
    server: ServerProcess, store: ModelStore
) -> None:
    assert live_version(server) == 1
    store.promote("linear", 3)
    switches_in_time(server, 3)
    server.wait_for_log(message="version unloaded", model="linear", version=1)
    assert infer(server, "linear", linear_input(ROW), version="1").status == 404
    assert server.metric("flambeau_model_ready", model="linear") == 1
    rollback(store, "linear")
    switches_in_time(server, 1)


def test_moved_pointer_fails_no_request_under_load(
    server: ServerProcess, store: ModelStore
) -> None:
    """Every answer is right, and from one version: the one it names."""
    stop = threading.Event()

    def over_rest() -> Counter[int]:
        versions: Counter[int] = Counter()
        while not stop.is_set():
            versions[live_version(server)] += 1
        return versions

    def over_grpc() -> Counter[int]:
        versions: Counter[int] = Counter()
        with grpc.insecure_channel(server.grpc) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            while not stop.is_set():
                response = stub.ModelInfer(linear_request(ROW), timeout=TIMEOUT_S)
                version = int(response.model_version)
                assert outputs(response)["y"].tolist() == [[version * x for x in ROW]]
                versions[version] += 1
        return versions

    with ThreadPoolExecutor(4) as threads:
        callers = [threads.submit(call) for call in (over_rest, over_grpc) * 2]
        try:
            for version in (2, 3, 1, 2):
                store.promote("linear", version)
                switches_in_time(server, version)
        finally:
            stop.set()
        for caller in callers:
            assert set(caller.result()) == {1, 2, 3}
    moves = [log["version"] for log in server.logs() if log["message"] == "version live"]
    assert moves == [1, 2, 3, 1, 2]
    assert server.metric("flambeau_requests_total") == sum(
        server.metric("flambeau_requests_total", code=code) for code in ("200", "OK")
    )


def test_requests_of_the_old_version_finish_after_the_switch(tmp_path: Path) -> None:
    for _ in range(2):
        publish(str(tmp_path), "lookup", slow_lookup())
    store = ModelStore(str(tmp_path))
    store.promote("lookup", 1)
    with (
        running_server(tmp_path, newest_versions=0, access_log=True) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        old = threads.submit(infer, server, "lookup", *lookup_inputs(7, work=200_000), id="old")
        server.wait_for_metric(1, "flambeau_in_flight_requests")
        store.promote("lookup", 2)
        server.wait_for_log(message="version live", version=2)
        new = infer(server, "lookup", *lookup_inputs(8))
        assert not old.done(), "the old version was never kept busy; give it more work"
        assert (new.json()["model_version"], new.outputs()) == ("2", {"value": [8]})
        assert old.result().json()["model_version"] == "1"
        assert old.result().outputs() == {"value": [7]}
        server.wait_for_log(message="version unloaded", version=1)
        # Each request counts for the version that answered it, not for the one that is live now.
        assert server.wait_for_log(request_id="old", message="request")["version"] == "1"
        for version in ("1", "2"):
            assert server.metric("flambeau_requests_total", version=version) == 1


def test_pointer_to_a_refused_version_changes_nothing(
    server: ServerProcess, store: ModelStore
) -> None:
    wrong = {"y": np.full((8, 4), 1000, np.float32)}
    publish(store.url, "linear", linear(4), golden_outputs=wrong)
    store.promote("linear", 4)
    server.wait_for_log(message="version refused", version=4)
    assert live_version(server) == 1
    assert "golden" in infer(server, "linear", linear_input(ROW), version="4").error()
    store.promote("linear", 2)
    switches_in_time(server, 2)


def test_newest_version_is_live_while_no_pointer_says_otherwise(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(1))
    with running_server(tmp_path) as server:
        publish(str(tmp_path), "linear", linear(2))
        switches_in_time(server, 2)
        assert infer(server, "linear", linear_input(ROW), version="1").status == 200


def test_model_that_leaves_the_store_is_no_longer_served(
    server: ServerProcess, store: ModelStore
) -> None:
    publish(store.url, "other", linear(1))
    server.wait_for_log(message="version live", model="other")
    shutil.rmtree(Path(store.url) / "linear")
    server.wait_for_log(message="version unloaded", model="linear")
    assert infer(server, "linear", linear_input(ROW)).status == 404
    assert infer(server, "other", linear_input(ROW)).status == 200


def test_store_that_is_gone_changes_nothing(server: ServerProcess, store: ModelStore) -> None:
    """The folder disappears for a while, like a disk that is unmounted."""
    folder = Path(store.url)
    folder.rename(folder.with_name("elsewhere"))
    told = server.wait_for_log(message="store is unreachable; serving the loaded versions")
    assert told["reason"].startswith(f"the store's folder is gone: {folder} was moved")
    assert server.metric("flambeau_store_away") == 1
    assert live_version(server) == 1
    folder.with_name("elsewhere").rename(folder)
    server.wait_for_log(message="store is back; following it again")
    store.promote("linear", 2)
    switches_in_time(server, 2)


def test_server_of_named_models_is_ready_when_all_are_live(tmp_path: Path) -> None:
    publish(str(tmp_path), "here", linear())
    publish(str(tmp_path), "other", linear())
    with (
        running_server(tmp_path, "--model=here", "--model=late") as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub: Any = GRPCInferenceServiceStub(channel)
        assert infer(server, "here", linear_input(ROW)).status == 200
        assert infer(server, "other", linear_input(ROW)).status == 404
        assert call(server, "GET", "/v2/health/ready").status == 503
        assert not stub.ServerReady(pb.ServerReadyRequest()).ready
        publish(str(tmp_path), "late", linear())
        server.wait_for_log(message="version live", model="late")
        # Logged a little later, at the end of the store poll.
        wait_until(lambda: call(server, "GET", "/v2/health/ready").status == 200)
        assert stub.ServerReady(pb.ServerReadyRequest()).ready


def test_server_of_onnx_artifacts_never_imports_torch(server: ServerProcess) -> None:
    assert live_version(server) == 1
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "onnxruntime" in maps
    assert "libtorch" not in maps
    assert "site-packages/torch" not in maps


@pytest.fixture
def lookup_server(tmp_path: Path) -> Iterator[ServerProcess]:
    publish(str(tmp_path), "lookup", slow_lookup())
    with running_server(tmp_path) as server:
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_accepted_requests_finish_before_the_end(
    lookup_server: ServerProcess, number: signal.Signals
) -> None:
    server = lookup_server
    idle = http.client.HTTPConnection(server.http)
    assert call_on(idle, "GET", "/v2/health/ready").status == 200
    with grpc.insecure_channel(server.grpc) as channel, ThreadPoolExecutor(1) as threads:
        stub: Any = GRPCInferenceServiceStub(channel)
        rest = threads.submit(infer, server, "lookup", *lookup_inputs(5, work=150_000))
        server.wait_for_metric(1, "flambeau_in_flight_requests")
        server.wait_for_metric(0, "flambeau_queue_depth")
        over_grpc = stub.ModelInfer.future(lookup_request(6))
        server.wait_for_metric(1, "flambeau_queue_depth")

        server.ask_to_stop(number)
        server.wait_for_log(message="draining")
        ready = call(server, "GET", "/v2/health/ready")
        assert (ready.status, ready.json()) == (503, {"ready": False, "reason": "shutting down"})
        assert call(server, "GET", "/v2/health/live").status == 200
        assert not stub.ServerReady(pb.ServerReadyRequest()).ready
        assert stub.ServerLive(pb.ServerLiveRequest()).live
        refused = infer(server, "lookup", *lookup_inputs(1))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "shutting down" in refused.error()
        code, message = error_of(lambda: stub.ModelInfer(lookup_request(1)))
        assert code is StatusCode.UNAVAILABLE
        assert "shutting down" in message
        assert not rest.done(), "nothing was left to finish; give it more work"

        assert rest.result().outputs() == {"value": [5]}
        assert outputs(over_grpc.result(TIMEOUT_S))["value"].tolist() == [6]
        assert server.wait() == 0
    idle.close()


def test_requests_that_outlast_the_drain_are_answered(tmp_path: Path) -> None:
    """Nothing can stop the backend, but nobody has to wait for it."""
    publish(str(tmp_path), "lookup", slow_lookup())
    with (
        running_server(tmp_path, drain_timeout_s=0.1) as server,
        grpc.insecure_channel(server.grpc) as channel,
        ThreadPoolExecutor(1) as threads,
    ):
        running = threads.submit(infer, server, "lookup", *lookup_inputs(1, work=150_000))
        server.wait_for_metric(1, "flambeau_in_flight_requests")
        server.wait_for_metric(0, "flambeau_queue_depth")
        stub: Any = GRPCInferenceServiceStub(channel)
        queued = stub.ModelInfer.future(lookup_request(2))
        server.wait_for_metric(1, "flambeau_queue_depth")
        server.ask_to_stop()
        assert running.result().status == 503
        assert "drain_timeout_s" in running.result().error()
        assert queued.code() is StatusCode.UNAVAILABLE
        assert "drain_timeout_s" in queued.details()
        assert server.wait() == 0


def test_second_signal_ends_it_at_once(lookup_server: ServerProcess) -> None:
    server = lookup_server
    body = json.dumps({"inputs": lookup_inputs(1, work=10_000_000)})
    busy = http.client.HTTPConnection(server.http)
    busy.request("POST", infer_path("lookup"), body)
    server.wait_for_metric(1, "flambeau_in_flight_requests")
    server.ask_to_stop()
    server.wait_for_log(message="draining")
    server.process.send_signal(signal.SIGTERM)
    server.expected_code = -signal.SIGTERM
    assert server.wait() == -signal.SIGTERM
    busy.close()
