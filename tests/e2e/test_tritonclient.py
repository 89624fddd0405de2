"""tritonclient, unchanged: HTTP and gRPC, each synchronous and asyncio, behave alike."""

from typing import Any

import numpy as np
import pytest

from tests.e2e.rest_calls import call, infer_path
from tests.e2e.tensor_values import RUNTIME_DATATYPES, VALUES, assert_same_bits, echo_model
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_client import KINDS, Inputs, TritonClient, TritonError

X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_health(client: TritonClient) -> None:
    assert client.call("is_server_live")
    assert client.call("is_server_ready")
    assert client.call("is_model_ready", "linear")
    assert client.call("is_model_ready", "linear", "1")
    assert not client.call("is_model_ready", "linear", "3")
    assert not client.call("is_model_ready", "refused")
    assert not client.call("is_model_ready", "nowhere")


def test_metadata(client: TritonClient) -> None:
    assert client.call("get_server_metadata")["name"] == "flambeau"
    model = client.call("get_model_metadata", "linear", "1")
    assert (model["name"], model["versions"]) == ("linear", ["1", "2"])
    for tensor in (model["inputs"][0], model["outputs"][0]):
        assert tensor["datatype"] == "FP32"
        assert [int(dimension) for dimension in tensor["shape"]] == [-1, 4]


@pytest.mark.parametrize(("version", "scale"), [("", 2), ("1", 1), ("2", 2)])
def test_infer(client: TritonClient, version: str, scale: int) -> None:
    answer = client.infer("linear", {"x": X}, model_version=version, request_id="mine-9")
    assert_same_bits(answer.outputs["y"], scale * X)
    assert (answer.id, answer.model_version) == ("mine-9", str(scale))


@pytest.mark.parametrize("datatype", RUNTIME_DATATYPES)
def test_datatype(client: TritonClient, datatype: str) -> None:
    answer = client.infer(echo_model(datatype), {f"in_{datatype}": VALUES[datatype]})
    assert_same_bits(answer.outputs[f"out_{datatype}"], VALUES[datatype])


def test_outputs_wanted(client: TritonClient) -> None:
    answer = client.infer("pair", {"a": X, "b": X}, {"difference": {}})
    assert list(answer.outputs) == ["difference"]
    assert_same_bits(answer.outputs["difference"], np.zeros_like(X))


@pytest.mark.parametrize("kind", ["http", "http.aio"], indirect=True)
@pytest.mark.parametrize("binary_output", [True, False])
@pytest.mark.parametrize("binary_input", [True, False])
def test_binary_and_json(client: TritonClient, binary_input: bool, binary_output: bool) -> None:
    inputs: Inputs = {"a": (X, {"binary_data": binary_input}), "b": X}
    outputs: dict[str, Any] = {"total": {"binary_data": binary_output}, "difference": {}}
    answer = client.infer("pair", inputs, outputs)
    assert_same_bits(answer.outputs["total"], 2 * X)
    assert_same_bits(answer.outputs["difference"], np.zeros_like(X))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: TritonClient, kind: str, algorithm: str) -> None:
    large = np.ones((1, 5000), np.float32)
    how: dict[str, Any] = (
        {"compression_algorithm": algorithm}
        if kind.startswith("grpc")
        else {
            "request_compression_algorithm": algorithm,
            "response_compression_algorithm": algorithm,
        }
    )
    answer = client.infer("echo-fp32", {"in_FP32": large}, **how)
    assert_same_bits(answer.outputs["out_FP32"], large)


@pytest.mark.parametrize(
    ("model", "name", "status", "message"),
    [
        ("nowhere", "x", ("404", "StatusCode.NOT_FOUND"), "model 'nowhere' is not served"),
        ("linear", "z", ("400", "StatusCode.INVALID_ARGUMENT"), "unknown input 'z'"),
        ("refused", "x", ("503", "StatusCode.UNAVAILABLE"), "golden"),
    ],
)
def test_error(
    client: TritonClient, kind: str, model: str, name: str, status: tuple[str, str], message: str
) -> None:
    with pytest.raises(TritonError) as caught:
        client.infer(model, {name: X})
    assert message in caught.value.message
    assert caught.value.status == status[kind.startswith("grpc")]


def test_classification(client: TritonClient, kind: str) -> None:
    x = np.array([[0.5, 3, -2, 3], [4, 1, 2, 3]], np.float32)
    labelled = client.infer("labelled", {"x": x}, {"y": {"class_count": 2}}).outputs["y"]
    assert labelled.tolist() == [
        [b"6.000000:1:bee", b"6.000000:3:dog"], [b"8.000000:0:ant", b"6.000000:3:dog"]
    ]  # fmt: skip
    plain = client.infer("linear", {"x": x}, {"y": {"class_count": 9}}).outputs["y"]
    assert plain[0].tolist() == [b"6.000000:1", b"6.000000:3", b"1.000000:0", b"-4.000000:2"]
    with pytest.raises(TritonError, match="unsupported type 'BOOL'"):
        client.infer("echo-bool", {"in_BOOL": VALUES["BOOL"]}, {"out_BOOL": {"class_count": 2}})
    metadata = client.call("get_server_metadata")
    assert "classification" in metadata["extensions"]


@pytest.mark.parametrize("kind", ["grpc", "grpc.aio"], indirect=True)
def test_client_timeout(client: TritonClient) -> None:
    inputs = {"work": np.array([60_000]), "index": np.array([1])}
    with pytest.raises(TritonError) as caught:
        client.infer("lookup", inputs, client_timeout=0.1)
    assert caught.value.status == "StatusCode.DEADLINE_EXCEEDED"
    # The abandoned request still runs: this one waits for it, so that later tests are unaffected.
    client.infer("lookup", {"work": np.array([0]), "index": np.array([2])})


def test_async_infer_of_the_http_client(server: ServerProcess) -> None:
    with TritonClient("http", server.http, concurrency=8) as client:
        answers = client.infer_together("linear", [{"x": X + number} for number in range(32)])
    for number, answer in enumerate(answers):
        assert_same_bits(answer.outputs["y"], 2 * (X + number))


def test_raw_body_of_the_http_client(server: ServerProcess) -> None:
    """Its own encoder and decoder, over somebody else's HTTP library."""
    with TritonClient("http", server.http) as client:
        body, length = client.encode({"x": X})
        headers = {"inference-header-content-length": str(length)}
        reply = call(server, "POST", infer_path("linear"), body, headers)
        position = int(reply.headers["inference-header-content-length"])
        answer = client.decode(reply.body, position)
    assert_same_bits(answer.outputs["y"], 2 * X)
