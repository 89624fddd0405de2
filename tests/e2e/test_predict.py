"""TensorFlow Serving's REST protocol and KServe's version 1, in every shape of a server."""

import json
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from tests.e2e.rest_calls import Reply, call
from tests.fixtures.servers import ServerProcess
from tests.fixtures.tensorflow_messages import tf

ROWS = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]


def predict(server: ServerProcess, model: str, body: Any, method: str = "POST") -> Reply:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return call(server, method, f"/v1/models/{model}", text)


@pytest.mark.parametrize(("version", "scale"), [("", 2), ("/versions/1", 1), ("/versions/2", 2)])
def test_both_forms(server: ServerProcess, version: str, scale: int) -> None:
    scaled = [[scale * x for x in row] for row in ROWS]
    path = f"linear{version}:predict"
    for body, key in (
        ({"instances": ROWS}, "predictions"),
        ({"instances": [{"x": row} for row in ROWS]}, "predictions"),
        ({"inputs": ROWS}, "outputs"),
        ({"inputs": {"x": ROWS}}, "outputs"),
    ):
        reply = predict(server, path, body)
        assert (reply.status, reply.json()) == (200, {key: scaled})
        assert reply.headers["x-request-id"]


def test_several_inputs_and_outputs(server: ServerProcess) -> None:
    reply = predict(server, "pair:predict", {"instances": [{"a": ROWS[0], "b": ROWS[1]}]})
    (row,) = reply.json()["predictions"]
    assert row == {"total": [6, 8, 10, 12], "difference": [-4, -4, -4, -4]}


def test_a_large_body_and_answer(server: ServerProcess) -> None:
    rows = np.arange(60_000, dtype=np.float32).reshape(1, -1)
    reply = predict(server, "echo-fp32:predict", {"inputs": {"in_FP32": rows.tolist()}})
    assert reply.status == 413, "the size of its rows is not known"
    few = rows[:, :12_000].tolist()
    reply = predict(server, "echo-fp32:predict", {"instances": few})
    assert reply.json() == {"predictions": few}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("nowhere:predict", {"instances": ROWS}, 404, "model 'nowhere' is not served"),
        ("nowhere:predict", b"{", 404, "model 'nowhere' is not served"),
        ("linear/versions/9:predict", {"instances": ROWS}, 404, "no served version '9'"),
        ("linear/labels/staging:predict", {"instances": ROWS}, 404, "no served version 'staging'"),
        ("linear/labels/1:predict", {"instances": ROWS}, 404, "a number names a version"),
        ("refused:predict", {"instances": ROWS}, 503, "golden"),
        ("linear:predict", b"{", 400, "not JSON"),
        ("linear:predict", b"", 400, "not JSON"),
        ("linear:predict", {"instances": ROWS, "inputs": ROWS}, 400, "both"),
        ("linear:predict", {"instances": [[1.0]]}, 400, "has shape [1,1]"),
        ("linear:predict", {"instances": ROWS * 5}, 400, "at most 8 fit"),
        ("pair:predict", {"instances": [{"a": ROWS[0]}]}, 400, "input 'b' is missing"),
        ("linear:classify", {"examples": [{}]}, 501, "':classify' is not offered"),
        ("linear/versions/1:regress", {"examples": [{}]}, 501, "':regress' is not offered"),
        ("linear:explain", {"instances": ROWS}, 501, "':explain' is not offered"),
        ("linear:other", {"instances": ROWS}, 405, "not allowed"),
        ("linear/versions/1/versions/2:predict", {}, 404, "unknown path"),
    ],
)
def test_refusals(server: ServerProcess, path: str, body: Any, status: int, words: str) -> None:
    reply = predict(server, path, body)
    assert reply.status == status, reply.body
    assert words in reply.error()


def test_methods(server: ServerProcess) -> None:
    for path in ("linear:predict", "linear/versions/1:classify"):
        reply = predict(server, path, b"", "GET")
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(("path", "version"), [("linear", "2"), ("linear/versions/1", "1")])
def test_metadata(server: ServerProcess, path: str, version: str) -> None:
    reply = call(server, "GET", f"/v1/models/{path}/metadata")
    assert reply.status == 200, reply.body
    found = reply.json()
    assert found["model_spec"] == {"name": "linear", "signature_name": "", "version": version}
    assert list(found["metadata"]) == ["signature_def"]
    signatures = ParseDict(found["metadata"]["signature_def"], tf.SignatureDefMap())
    assert list(signatures.signature_def) == ["serving_default"]
    signature = signatures.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert (list(signature.inputs), list(signature.outputs)) == (["x"], ["y"])
    info = signature.inputs["x"]
    assert (info.name, info.dtype) == ("x", 1)
    assert [dim.size for dim in info.tensor_shape.dim] == [-1, 4]


def test_metadata_is_refused(server: ServerProcess) -> None:
    for path, status in (
        ("nowhere", 404), ("linear/versions/9", 404), ("linear/labels/1", 404), ("refused", 503),
    ):  # fmt: skip
        assert call(server, "GET", f"/v1/models/{path}/metadata").status == status
    assert call(server, "POST", "/v1/models/linear/metadata").status == 405


def test_status(server: ServerProcess) -> None:
    names = call(server, "GET", "/v1/models").json()["models"]
    assert {"linear", "pair", "refused"} <= set(names)
    assert names == sorted(names)
    found = call(server, "GET", "/v1/models/linear").json()
    assert (found["name"], found["ready"]) == ("linear", True)
    available = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert found["model_version_status"] == [
        {"version": "2", **available}, {"version": "1", **available},
    ]  # fmt: skip
    one = call(server, "GET", "/v1/models/linear/versions/1").json()
    assert one == {"model_version_status": [{"version": "1", **available}]}
    refused = call(server, "GET", "/v1/models/refused")
    (told,) = refused.json()["model_version_status"]
    assert (refused.status, told["state"]) == (503, "END")
    assert "golden" in told["status"]["error_message"]
    for path in ("nowhere", "linear/versions/9", "linear/labels/staging", "linear/labels/1"):
        assert call(server, "GET", f"/v1/models/{path}").status == 404
    assert call(server, "POST", "/v1/models/linear").status == 405
