"""The repository calls: its index, and models that callers load and unload."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.rest_calls import call
from tests.fixtures import onnx_models
from tests.fixtures.administration_calls import index
from tests.fixtures.redis_servers import redis_process
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import Part, running_gateway, running_split, running_worker
from tests.fixtures.triton_client import TritonClient, TritonError


def test_index(client: TritonClient) -> None:
    found = index(client)
    assert found == sorted(found)
    assert {
        ("linear", "1", "READY"),
        ("linear", "2", "READY"),
        ("refused", "1", "UNAVAILABLE"),
    } <= (set(found))


def test_models_that_follow_pointers_are_not_loaded_by_callers(
    client: TritonClient, kind: str
) -> None:
    for act in ("load_model", "unload_model"):
        with pytest.raises(TritonError) as caught:
            client.call(act, "linear")
        assert caught.value.message.startswith(
            "explicit model load / unload is not allowed if polling is enabled"
        )
        assert caught.value.status == ("503" if kind == "http" else "StatusCode.UNAVAILABLE")


def test_gateway_tells_whose_models_it_has(tmp_path: Path, kind: str) -> None:
    onnx_models.publish(str(tmp_path), "linear", onnx_models.linear(1.0))
    with running_split(tmp_path) as server:
        address = server.http if kind == "http" else server.grpc
        with TritonClient(kind, address) as client:
            for act in ("load_model", "unload_model"):
                with pytest.raises(TritonError, match="those that its workers serve"):
                    client.call(act, "linear")


def test_callers_choose_the_models_of_all_workers(tmp_path: Path, kind: str) -> None:
    x = np.ones((1, 4), np.float32)
    publish_models(tmp_path)
    settings = {"model_control": "explicit", "models": ["first"]}
    with ExitStack() as stack:
        redis = stack.enter_context(redis_process())

        def worker() -> Part:
            return stack.enter_context(running_worker(tmp_path, redis.url, **settings))

        workers = [worker(), worker()]
        gateway = stack.enter_context(running_gateway(redis.url, **settings))
        address = gateway.http if kind == "http" else gateway.grpc
        operator = stack.enter_context(TritonClient(kind, address))
        assert ("second", "", "UNAVAILABLE") in index(operator)
        operator.call("load_model", "second")
        operator.infer("second", {"x": x})
        operator.call("unload_model", "first")
        assert operator.call("is_server_ready")
        for name, code in (("refused", 500), ("secnd", 404)):
            with pytest.raises(TritonError, match="golden" if code == 500 else "did you mean"):
                operator.call("load_model", name)
        for one in workers:
            one.wait_for_log(message="version unloaded", model="first")
            assert served_by(one) == {"second"}
        workers.append(worker())
        for one in workers[:2]:
            one.ask_to_stop()
            one.wait()
        assert served_by(workers[2]) == {"second"}
        operator.infer("second", {"x": x})
        with pytest.raises(TritonError, match="is not served"):
            operator.infer("first", {"x": x})
        assert call(gateway, "POST", "/v2/repository/models/%ff/load", b"").status == 404


def served_by(worker: Part) -> set[str]:
    """Returns the models that a worker serves, by its metrics."""
    samples = worker.metric_families()["flambeau_model_ready"].samples
    return {one.labels["model"] for one in samples if one.value}


def publish_models(store: Path) -> None:
    """Publishes three models that can be loaded, and one that is refused."""
    for name in ("first", "second", "third"):
        onnx_models.publish(str(store), name, onnx_models.linear(2.0))
    wrong = {"y": np.full((8, 4), 1000, np.float32)}
    onnx_models.publish(str(store), "refused", onnx_models.linear(), golden_outputs=wrong)


@pytest.fixture(scope="module", params=[running_server, running_processes])
def explicit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Runs a server whose callers choose the models, of which one is there at the start."""
    store = tmp_path_factory.mktemp("explicit")
    publish_models(store)
    settings = {"model_control": "explicit", "models": ["first"]}
    with request.param(store, **settings) as server:
        server.wait_until_read_through()
        yield server


@pytest.fixture
def operator(kind: str, explicit: ServerProcess) -> Iterator[TritonClient]:
    address = explicit.http if kind == "http" else explicit.grpc
    with TritonClient(kind, address) as client:
        yield client


def test_callers_load_and_unload(operator: TritonClient) -> None:
    x = np.ones((1, 4), np.float32)
    unloaded = {(name, "", "UNAVAILABLE") for name in ("second", "third")}
    assert {("first", "1", "READY"), *unloaded} <= set(index(operator))
    with pytest.raises(TritonError, match="is not served"):
        operator.infer("second", {"x": x})
    for _ in range(2):
        operator.call("load_model", "second")
        assert ("second", "1", "READY") in index(operator)
        assert operator.call("is_model_ready", "second")
        operator.infer("second", {"x": x})
    for _ in range(2):
        operator.call("unload_model", "second")
        assert not operator.call("is_model_ready", "second")
        with pytest.raises(TritonError, match="is not served"):
            operator.infer("second", {"x": x})
    operator.infer("first", {"x": x})
    assert operator.call("is_server_ready")


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("nowhere", ("404", "StatusCode.NOT_FOUND"), "failed to load 'nowhere'"),
        ("secnd", ("404", "StatusCode.NOT_FOUND"), "did you mean 'second'"),
        ("refused", ("500", "StatusCode.INTERNAL"), "golden"),
        ("", ("404", "StatusCode.NOT_FOUND"), ""),
        ("x" * 1000, ("404", "StatusCode.NOT_FOUND"), "failed to load 'x"),
    ],
)
def test_what_cannot_be_loaded(
    operator: TritonClient, kind: str, model: str, status: tuple[str, str], words: str
) -> None:
    with pytest.raises(TritonError) as caught:
        operator.call("load_model", model)
    assert words in caught.value.message
    assert len(caught.value.message) < 1000
    assert caught.value.status == status[kind == "grpc"]
    operator.call("unload_model", "refused")


@pytest.mark.parametrize("how", [{"config": "{}"}, {"config": "{}", "files": {"file:1/a": b"a"}}])
def test_no_configuration_is_taken(operator: TritonClient, kind: str, how: dict[str, Any]) -> None:
    with pytest.raises(TritonError) as caught:
        operator.call("load_model", "second", **how)
    assert "immutable" in caught.value.message
    assert caught.value.status == ("501" if kind == "http" else "StatusCode.UNIMPLEMENTED")
    assert not operator.call("is_model_ready", "second")


def test_a_storm_of_loads_and_unloads_fails_no_request_of_others(
    explicit: ServerProcess,
) -> None:
    x = np.ones((1, 4), np.float32)
    names = ["second", "third", "nowhere", "refused"]
    failures: list[str] = []

    def storm(number: int) -> None:
        with TritonClient("http", explicit.http) as client:
            for turn in range(12):
                act = ("load_model", "unload_model")[(number + turn) % 2]
                try:
                    client.call(act, names[(number + turn) % 4])
                except TritonError as error:
                    if error.status not in ("404", "500", "503"):
                        failures.append(str(error))

    with TritonClient("grpc", explicit.grpc) as healthy, ThreadPoolExecutor(8) as pool:
        storms = [pool.submit(storm, number) for number in range(8)]
        while not all(one.done() for one in storms):
            healthy.infer("first", {"x": x})
        for one in storms:
            one.result()
        assert failures == []
        for name in names:
            healthy.call("unload_model", name)
        assert [name for name, _, state in index(healthy) if state == "READY"] == ["first"]


def test_a_server_that_follows_nothing(tmp_path: Path) -> None:
    onnx_models.publish(str(tmp_path), "linear", onnx_models.linear(1.0))
    with running_server(tmp_path, model_control="none", store_poll_interval_s=0.05) as server:
        server.wait_until_read_through()
        onnx_models.publish(str(tmp_path), "linear", onnx_models.linear(2.0))
        onnx_models.publish(str(tmp_path), "other", onnx_models.linear(2.0))
        with TritonClient("http", server.http) as client:
            for _ in range(10):
                assert index(client) == [("linear", "1", "READY")]
                time.sleep(0.05)
            with pytest.raises(TritonError, match="polling is enabled"):
                client.call("load_model", "other")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("index", b"{", 400, "not JSON"),
        ("index", b"[]", 400, "give an object"),
        ("index", b'{"ready":1}', 400, "true or false"),
        ("index", b'{"ready":true}', 200, ""),
        ("index", b" ", 200, ""),
        ("index", b"[" * 8000, 400, "not JSON"),
        ("index", b"{" + b",".join(b'"%d":1' % n for n in range(900)) + b"}", 400, "members"),
        ("index", b'{"ready":' + b" " * 9000 + b"true}", 413, ""),
        ("models/first/load", b'{"parameters":[1]}', 400, "give an object"),
        ("models/first/load", b'{"parameters":{"a":{}}}', 400, "give text"),
        ("models/first/load", b'{"parameters":{"a":1e999}}', 400, ""),
        ("models/first/load", b'{"parameters":{"a":18446744073709551615}}', 400, "give text"),
        ("models/first/load", b'{"parameters":{"foo":"bar"}}', 400, "unknown parameter 'foo'"),
        ("models/first/load", b'{"parameters":{"config":"{}"}}', 501, "'config'"),
        ("models/first/load", b'{"parameters":{"file:1/m":"aGk="}}', 501, "'file:1/m'"),
        ("models/first/load", b'{"parameters":null}', 200, ""),
        ("models/first/load", b"", 200, ""),
        ("models/second/unload", b'{"parameters":{"unload_dependents":"x"}}', 400, "true or false"),
        ("models/second/unload", b'{"parameters":{"unload_dependents":true}}', 200, ""),
        ("models/second/unload", b'{"parameters":{"x":true}}', 400, "'unload_dependents'"),
        ("models/%00/load", b"", 404, "failed to load"),
        ("models/..%2f..%2fetc/load", b"", 404, "failed to load"),
    ],
)
def test_bodies(explicit: ServerProcess, path: str, body: bytes, status: int, words: str) -> None:
    reply = call(explicit, "POST", f"/v2/repository/{path}", body)
    assert reply.status == status, reply.body
    assert words in (reply.error() if status >= 400 else "")
