"""Configuration, statistics and aliases, by tritonclient, in every shape of a server."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from model_store.store import ModelStore
from tests.e2e.conftest import SHAPES
from tests.e2e.rest_calls import call
from tests.fixtures import onnx_models
from tests.fixtures.administration_calls import config_of, number, statistics
from tests.fixtures.redis_servers import until_true
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_client import TritonClient, TritonError


def test_config(client: TritonClient) -> None:
    found = config_of(client, "linear", "1")
    assert (found["name"], found["max_batch_size"]) == ("linear", 8)
    (x,) = found["input"]
    assert (x["name"], x["data_type"], [int(size) for size in x["dims"]]) == ("x", "TYPE_FP32", [4])
    assert found["default_model_filename"].endswith(".onnx")
    assert "dynamic_batching" in found
    assert not found["model_transaction_policy"].get("decoupled", False)
    assert [group["kind"] for group in found["instance_group"]] == ["KIND_CPU"]
    assert list(map(int, found["version_policy"]["specific"]["versions"])) == [1, 2]


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        (("nowhere",), ("404", "StatusCode.NOT_FOUND"), "model 'nowhere' is not served"),
        (("linear", "9"), ("404", "StatusCode.NOT_FOUND"), "no served version '9'"),
        (("refused",), ("503", "StatusCode.UNAVAILABLE"), "golden"),
    ],
)
def test_config_of_what_is_not_served(
    client: TritonClient, kind: str, names: tuple[str, ...], status: tuple[str, str], words: str
) -> None:
    with pytest.raises(TritonError) as caught:
        client.call("get_model_config", *names)
    assert words in caught.value.message
    assert caught.value.status == status[kind == "grpc"]


def test_statistics_agree_with_requests_and_metrics(
    client: TritonClient, server: ServerProcess
) -> None:
    before: dict[str, Any] = {}

    def is_settled() -> bool:
        (found,) = statistics(client, "pair")
        before.update(found)
        counts = (number(found, "inference_stats", part, "count") for part in ("success", "queue"))
        return len({*counts}) == 1

    until_true(is_settled)
    x = np.ones((3, 4), np.float32)
    for _ in range(4):
        client.infer("pair", {"a": x, "b": x})
    with pytest.raises(TritonError):
        client.infer("pair", {"a": x})

    def grown(*path: str) -> int:
        return number(after, *path) - number(before, *path)

    after = before

    def has_arrived() -> bool:
        nonlocal after
        (after,) = statistics(client, "pair", "1")
        return grown("execution_count") >= 4

    until_true(has_arrived)
    assert grown("inference_stats", "success", "count") == 4
    assert grown("inference_stats", "fail", "count") == 1
    assert grown("inference_count") == 12
    assert grown("execution_count") == 4
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert grown("inference_stats", part, "count") == 4, part
    spent = [
        grown("inference_stats", part, "ns")
        for part in ("queue", "compute_input", "compute_infer", "compute_output")
    ]
    assert all(spent[1:])
    assert sum(spent) <= grown("inference_stats", "success", "ns")
    sizes = {number(one, "batch_size"): one for one in after["batch_stats"]}
    assert number(sizes[3], "compute_infer", "count") >= 4
    assert abs(number(after, "last_inference") / 1000 - time.time()) < 60


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        (("nowhere",), ("404", "StatusCode.NOT_FOUND"), "model 'nowhere' is not served"),
        (("linear", "9"), ("404", "StatusCode.NOT_FOUND"), "no served version '9'"),
        (("refused",), ("503", "StatusCode.UNAVAILABLE"), "golden"),
    ],
)
def test_statistics_of_what_is_not_served(
    client: TritonClient, kind: str, names: tuple[str, ...], status: tuple[str, str], words: str
) -> None:
    with pytest.raises(TritonError) as caught:
        client.call("get_inference_statistics", *names)
    assert words in caught.value.message
    assert caught.value.status == status[kind == "grpc"]


def test_statistics_of_all_models(client: TritonClient) -> None:
    found = [(one["name"], one["version"]) for one in statistics(client)]
    assert found == sorted(found)
    assert {("linear", "1"), ("linear", "2"), ("pair", "1")} <= set(found)
    assert "refused" not in dict(found)


def test_two_clients_see_the_same_statistics(server: ServerProcess) -> None:
    """Each connection may be at another edge process."""
    x = np.ones((1, 4), np.float32)
    clients = [TritonClient("http", server.http) for _ in range(6)]
    before = number(statistics(clients[0], "linear", "1")[0], "inference_stats", "success", "count")
    for client in clients:
        client.infer("linear", {"x": x}, model_version="1")
    for client in clients:
        (after,) = statistics(client, "linear", "1")
        assert number(after, "inference_stats", "success", "count") == before + len(clients)
        client.__exit__()


@pytest.fixture(scope="module", params=SHAPES)
def aliased(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ModelStore]]:
    """Runs a server of a model whose versions have aliases."""
    folder = tmp_path_factory.mktemp("aliased")
    store = ModelStore(str(folder))
    for scale in (1.0, 2.0, 3.0):
        onnx_models.publish(str(folder), "linear", onnx_models.linear(scale))
    store.promote("linear", 1)
    store.promote("linear", 2, "canary")
    with SHAPES[request.param](folder) as server:
        server.wait_until_read_through()
        yield server, store


def test_a_request_may_name_an_alias(kind: str, aliased: tuple[ServerProcess, ModelStore]) -> None:
    server, store = aliased
    x = np.ones((1, 4), np.float32)
    with TritonClient(kind, server.http if kind == "http" else server.grpc) as client:

        def version(alias: str) -> int:
            answer = client.infer("linear", {"x": x}, model_version=alias)
            assert answer.outputs["y"][0, 0] == float(answer.model_version)
            return int(answer.model_version)

        assert [version(name) for name in ("", "production", "canary", "3")] == [1, 1, 2, 3]
        assert client.call("is_model_ready", "linear", "canary")
        assert not client.call("is_model_ready", "linear", "staging")
        client.call("get_model_metadata", "linear", "canary")
        found = config_of(client, "linear", "canary")
        assert found["name"] == "linear"
        (told,) = statistics(client, "linear", "canary")
        assert told["version"] == "2"
        with pytest.raises(TritonError, match="no served version 'staging'"):
            client.infer("linear", {"x": x}, model_version="staging")
        for target in (3, 2):
            store.promote("linear", target, "canary")
            until_true(lambda target=target: version("canary") == target)  # type: ignore[misc]
        assert version("production") == 1


def test_a_label_is_an_alias(aliased: tuple[ServerProcess, ModelStore]) -> None:
    server, _ = aliased
    body = b'{"instances":[[1,1,1,1]]}'
    for label, scale in (("canary", 2), ("production", 1)):
        reply = call(server, "POST", f"/v1/models/linear/labels/{label}:predict", body)
        assert reply.json() == {"predictions": [[scale] * 4]}
        status = call(server, "GET", f"/v1/models/linear/labels/{label}").json()
        assert [one["version"] for one in status["model_version_status"]] == [str(scale)]


def test_extensions(client: TritonClient) -> None:
    found = client.call("get_server_metadata")["extensions"]
    assert {"model_configuration", "statistics", "model_repository", "logging", "trace"} <= (
        set(found)
    )
    assert not {"system_shared_memory", "cuda_shared_memory"} & set(found)
