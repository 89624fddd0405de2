"""The calls beside inference, by tritonclient over HTTP and gRPC, in every shape of a server."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_client import TritonClient, TritonError

KINDS = ("http", "grpc")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, server: ServerProcess) -> Iterator[TritonClient]:
    address = server.http if kind == "http" else server.grpc
    with TritonClient(kind, address) as client:
        yield client


def config_of(client: TritonClient, *names: str) -> dict[str, Any]:
    """Returns a configuration; gRPC's has a message around it."""
    found: dict[str, Any] = client.call("get_model_config", *names)
    config: dict[str, Any] = found.get("config", found)
    return config


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


def statistics(client: TritonClient, *names: str) -> list[dict[str, Any]]:
    """Returns the statistics of versions; whole numbers are texts over gRPC, and 0 is left out."""
    found: dict[str, Any] = client.call("get_inference_statistics", *names)
    told: list[dict[str, Any]] = found.get("model_stats", [])
    return told


def number(found: dict[str, Any], *path: str) -> int:
    """Returns a whole number."""
    inside: Any = found
    for name in path:
        inside = inside.get(name, {})
    return int(inside or 0)


def until(is_so: Callable[[], bool]) -> None:
    """Asks until something is so: workers behind Redis tell their figures twice a second."""
    ends_at = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < ends_at, "it is never so"
        time.sleep(0.05)


def test_statistics_agree_with_requests_and_metrics(
    client: TritonClient, server: ServerProcess
) -> None:
    (before,) = statistics(client, "pair")
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

    until(has_arrived)
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
