"""REST, in JSON: health, metadata and inference."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.e2e.rest_calls import (
    Reply,
    call,
    infer,
    linear_input,
    lookup_inputs,
    post,
    tensor,
)
from tests.e2e.tensor_values import JSON_DATATYPES, VALUES, assert_same_bits, echo_model
from tests.fixtures.servers import ServerProcess

ROW = [1.0, 2.0, 3.0, 4.0]


def get(server: ServerProcess, path: str) -> Reply:
    return call(server, "GET", path)


def test_live_and_ready(server: ServerProcess) -> None:
    live, ready = get(server, "/v2/health/live"), get(server, "/v2/health/ready")
    assert (live.status, live.json()) == (200, {"live": True})
    assert (ready.status, ready.json()["ready"]) == (200, True)
    assert "model 'refused': version 1 was refused" in ready.json()["reason"]


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata(server: ServerProcess, path: str) -> None:
    reply = get(server, path)
    assert reply.status == 200
    assert reply.json()["name"] == "flambeau"
    assert set(reply.json()) == {"name", "version", "extensions"}
    assert "binary_tensor_data" in reply.json()["extensions"]


@pytest.mark.parametrize("version", ["", "/versions/1", "/versions/2"])
def test_model_ready(server: ServerProcess, version: str) -> None:
    reply = get(server, f"/v2/models/linear{version}/ready")
    assert (reply.status, reply.json()) == (200, {"name": "linear", "ready": True})


def test_refused_model_is_not_ready(server: ServerProcess) -> None:
    reply = get(server, "/v2/models/refused/versions/1/ready")
    assert (reply.status, reply.json()) == (503, {"name": "refused", "ready": False})


@pytest.mark.parametrize(
    ("path", "version"),
    [("linear", "2"), ("linear/versions/1", "1"), ("linear/versions/2", "2")],
)
def test_model_metadata(server: ServerProcess, path: str, version: str) -> None:
    reply = get(server, f"/v2/models/{path}")
    assert reply.status == 200
    assert reply.json() == {
        "name": "linear",
        "versions": ["1", "2"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
        "properties": {
            "artifact": "onnx",
            "artifacts": "onnx",
            "live_version": "2",
            "max_batch_size": "8",
            "semver": f"1.{int(version) - 1}.0",
            "version": version,
        },
    }


@pytest.mark.parametrize(("version", "scale"), [("", 2), ("1", 1), ("2", 2)])
def test_newest_version_unless_one_is_named(
    server: ServerProcess, version: str, scale: int
) -> None:
    reply = infer(server, "linear", linear_input(ROW), version=version)
    assert reply.outputs() == {"y": [scale * x for x in ROW]}
    assert reply.json()["model_name"] == "linear"
    assert reply.json()["model_version"] == str(scale)


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
@pytest.mark.parametrize("datatype", JSON_DATATYPES)
def test_datatype_in_json(server: ServerProcess, datatype: str, nested: bool) -> None:
    values = VALUES[datatype]
    data = values.tolist() if nested else values.ravel().tolist()
    reply = infer(
        server, echo_model(datatype), tensor(f"in_{datatype}", datatype, values.shape, data)
    )
    output = reply.json()["outputs"][0]
    assert (output["name"], output["datatype"]) == (f"out_{datatype}", datatype)
    assert_same_bits(np.array(output["data"], values.dtype).reshape(output["shape"]), values)


def test_dimension_of_zero(server: ServerProcess) -> None:
    reply = infer(server, "echo-fp32", tensor("in_FP32", "FP32", [2, 0], []))
    assert reply.json()["outputs"][0]["shape"] == [2, 0]
    assert reply.outputs() == {"out_FP32": []}


def test_outputs_wanted_and_their_order(server: ServerProcess) -> None:
    inputs = tensor("a", "FP32", [1, 1], [5]), tensor("b", "FP32", [1, 1], [3])
    everything = infer(server, "pair", *inputs).outputs()
    assert list(everything.items()) == [("total", [8]), ("difference", [2])]
    one = infer(server, "pair", *inputs, outputs=[{"name": "difference"}]).outputs()
    assert one == {"difference": [2]}
    turned = infer(
        server, "pair", *inputs, outputs=[{"name": "difference"}, {"name": "total"}]
    ).outputs()
    assert list(turned) == ["difference", "total"]


def test_inputs_in_any_order(server: ServerProcess) -> None:
    inputs = tensor("b", "FP32", [1, 1], [3]), tensor("a", "FP32", [1, 1], [5])
    assert infer(server, "pair", *inputs).outputs()["difference"] == [2]


def test_unknown_parameters_are_no_error(server: ServerProcess) -> None:
    given: dict[str, Any] = linear_input(ROW) | {"parameters": {"colour": "red"}}
    reply = infer(
        server,
        "linear",
        given,
        parameters={"priority": 1, "flag": True, "ratio": 0.5},
        outputs=[{"name": "y", "parameters": {"colour": "blue"}}],
    )
    assert reply.status == 200


def test_id_is_echoed_in_body_and_header(server: ServerProcess) -> None:
    reply = infer(
        server, "linear", linear_input(ROW), id="mine-7", headers={"x-request-id": "other"}
    )
    assert reply.json()["id"] == "mine-7"
    assert reply.headers["x-request-id"] == "mine-7"


def test_id_that_no_header_can_hold_is_echoed_in_the_body(server: ServerProcess) -> None:
    reply = infer(server, "linear", linear_input(ROW), id="né\r\nx: y")
    assert reply.json()["id"] == "né\r\nx: y"
    assert re.fullmatch("[0-9a-f]{28}", reply.headers["x-request-id"])
    assert reply.headers["x"] is None


def test_request_id_of_the_header_is_echoed(server: ServerProcess) -> None:
    reply = infer(server, "linear", linear_input(ROW), headers={"x-request-id": "from-proxy"})
    assert reply.headers["x-request-id"] == "from-proxy"
    assert "id" not in reply.json()


def test_requests_without_an_id_get_one_each(server: ServerProcess) -> None:
    ids = {infer(server, "linear", linear_input(ROW)).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{28}", given) for given in ids)


def test_concurrent_requests_share_batches_and_each_gets_its_own_answer(
    server: ServerProcess,
) -> None:
    def ask(number: int) -> list[float]:
        inputs = lookup_inputs(index=number % 10, work=2000)
        answer: list[float] = infer(server, "lookup", *inputs).outputs()["value"]
        return answer

    rows = server.metric("flambeau_batch_size_sum", model="lookup")
    batches = server.metric("flambeau_batch_size_count", model="lookup")
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, range(64)))
    assert answers == [[number % 10] for number in range(64)]
    rows = server.metric("flambeau_batch_size_sum", model="lookup") - rows
    batches = server.metric("flambeau_batch_size_count", model="lookup") - batches
    assert rows == 64
    assert batches <= 32, "concurrent requests were not batched"


def test_extension_that_is_not_offered_is_refused(server: ServerProcess) -> None:
    reply = infer(
        server, "linear", linear_input(ROW),
        outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}],
    )  # fmt: skip
    assert reply.status == 501
    assert "shared_memory_region" in reply.error()
    assert post(server, "/v2/repository/models", {}).status == 404
