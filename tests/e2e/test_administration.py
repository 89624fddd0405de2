"""The calls beside inference, by tritonclient over HTTP and gRPC, in every shape of a server."""

from collections.abc import Iterator
from typing import Any

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
