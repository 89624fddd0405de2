"""The profile `compat: triton`, by tritonclient: name, words and form of answers are Triton's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.conftest import SHAPES
from tests.e2e.grpc_calls import error_of, outputs, typed_request
from tests.e2e.tensor_values import JSON_DATATYPES, VALUES, assert_same_bits, echo_model
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_client import TritonClient, TritonError
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

X = np.array([[0.5, 3, -2, 3]], np.float32)
ID = "[request id: <id_unknown>] "


@pytest.fixture(scope="module", params=SHAPES)
def server(request: pytest.FixtureRequest, store: Path) -> Iterator[ServerProcess]:
    settings: dict[str, Any] = {"compat": "triton", "readiness": "any_model"}
    with SHAPES[request.param](store, **settings) as server:
        server.wait_until_read_through()
        yield server


def test_name(client: TritonClient) -> None:
    assert client.call("get_server_metadata")["name"] == "triton"


@pytest.mark.parametrize(
    ("model", "inputs", "how", "message"),
    [
        ("nope", {"x": X}, {}, "Request for unknown model: 'nope' is not found"),
        (
            "linear", {"x": X}, {"model_version": "9"},
            "Request for unknown model: 'linear' version 9 is not found",
        ),
        ("linear", {"z": X}, {}, "unexpected inference input 'z' for model 'linear'"),
        (
            "linear", {"x": X.astype(np.int32)}, {},
            f"{ID}inference input 'x' data-type is 'INT32', but model 'linear' expects 'FP32'",
        ),
        (
            "linear", {"x": X.astype(np.int32)}, {"request_id": "mine"},
            "[request id: mine] inference input 'x' data-type is 'INT32', but model 'linear' "
            "expects 'FP32'",
        ),
        (
            "linear", {"x": np.repeat(X, 9, axis=0)}, {},
            f"{ID}inference request batch-size must be <= 8 for 'linear'",
        ),
        (
            "linear", {"x": X}, {"outputs": {"q": {}}},
            "unexpected inference output 'q' for model 'linear'",
        ),
    ],
)  # fmt: skip
def test_words(
    client: TritonClient, model: str, inputs: Any, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(TritonError) as caught:
        client.infer(model, inputs, **how)
    assert caught.value.message == message


def test_words_for_a_large_body(server: ServerProcess) -> None:
    large = np.zeros((8, 5000), np.float32)
    for binary in (True, False):
        with TritonClient("http", server.http) as client, pytest.raises(TritonError) as caught:
            client.infer("linear", {"x": (large, {"binary_data": binary})})
        assert "Expected [-1,4], got [8,5000]. NOTE: " in caught.value.message


def test_words_of_metadata(client: TritonClient) -> None:
    with pytest.raises(TritonError) as caught:
        client.call("get_model_metadata", "nope")
    assert caught.value.message == "Request for unknown model: 'nope' is not found"


def test_words_of_administration(client: TritonClient) -> None:
    with pytest.raises(TritonError) as caught:
        client.call("update_trace_settings", None, {"trace_rate": "x"})
    assert caught.value.message == "Unable to parse 'trace_rate', got: x"


def test_words_of_a_named_repository(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        code, words = error_of(
            lambda: stub.RepositoryIndex(pb.RepositoryIndexRequest(repository_name="x"))
        )
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert words == "'repository_name' specification is not supported"


@pytest.mark.parametrize("datatype", JSON_DATATYPES)
def test_typed_request_gets_raw_outputs(server: ServerProcess, datatype: str) -> None:
    request = typed_request(
        echo_model(datatype), {f"in_{datatype}": (datatype, VALUES[datatype])}, id="mine"
    )
    with grpc.insecure_channel(server.grpc) as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert answer.id == "mine"
    assert answer.raw_output_contents
    assert_same_bits(outputs(answer)[f"out_{datatype}"], VALUES[datatype])
