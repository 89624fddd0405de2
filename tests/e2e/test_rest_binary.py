"""REST with the binary tensor data extension."""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.e2e.rest_calls import Reply, call, infer, infer_path, linear_input, tensor
from tests.e2e.tensor_values import (
    JSON_DATATYPES,
    RUNTIME_DATATYPES,
    VALUES,
    Array,
    assert_same_bits,
    echo_model,
)
from tests.fixtures.servers import ServerProcess

HEADER_LENGTH = "inference-header-content-length"
GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


def binary_tensor(name: str, datatype: str, array: Array, size: int | None = None) -> Any:
    """Returns an input whose bytes follow the JSON."""
    size = array.nbytes if size is None else size
    return {
        "name": name,
        "datatype": datatype,
        "shape": array.shape,
        "parameters": {"binary_data_size": size},
    }


def infer_binary(
    server: ServerProcess,
    model: str,
    inputs: Sequence[Mapping[str, Any]],
    tail: bytes,
    length: str | None = None,
    **fields: Any,
) -> Reply:
    """Sends an inference with bytes after its JSON; `length` falsifies the header."""
    head = json.dumps({"inputs": inputs, **fields}).encode()
    headers = {HEADER_LENGTH: str(len(head)) if length is None else length}
    return call(server, "POST", infer_path(model), head + tail, headers)


def arrays(reply: Reply) -> dict[str, Array]:
    """Returns binary outputs of a response, by name; every byte of it must be accounted for."""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/octet-stream"
    position = int(reply.headers[HEADER_LENGTH])
    found: dict[str, Array] = {}
    for output in json.loads(reply.body[:position])["outputs"]:
        dtype = VALUES[output["datatype"]].dtype
        if "data" in output:
            found[output["name"]] = np.array(output["data"], dtype).reshape(output["shape"])
            continue
        size = output["parameters"]["binary_data_size"]
        part = reply.body[position : position + size]
        found[output["name"]] = np.frombuffer(part, dtype).reshape(output["shape"])
        position += size
    assert position == len(reply.body)
    return found


@pytest.mark.parametrize("datatype", RUNTIME_DATATYPES)
def test_datatype_in_binary(server: ServerProcess, datatype: str) -> None:
    values = VALUES[datatype]
    inputs = [binary_tensor(f"in_{datatype}", datatype, values)]
    reply = infer_binary(
        server,
        echo_model(datatype),
        inputs,
        values.tobytes(),
        parameters={"binary_data_output": True},
    )
    assert_same_bits(arrays(reply)[f"out_{datatype}"], values)


def test_all_datatypes_in_one_request_mixed_with_json(server: ServerProcess) -> None:
    """Every other tensor in JSON where it can be, the answers the other way round."""
    in_json = JSON_DATATYPES[::2]
    inputs = [
        tensor(f"in_{d}", d, v.shape, v.tolist())
        if d in in_json
        else binary_tensor(f"in_{d}", d, v)
        for d, v in VALUES.items()
    ]
    tail = b"".join(v.tobytes() for d, v in VALUES.items() if d not in in_json)
    wanted = [
        {"name": f"out_{d}", "parameters": {"binary_data": d in in_json or d == "FP16"}}
        for d in VALUES
    ]
    found = arrays(infer_binary(server, "echo", inputs, tail, outputs=wanted))
    assert list(found) == [f"out_{d}" for d in VALUES]
    for datatype, values in VALUES.items():
        assert_same_bits(found[f"out_{datatype}"], values)


def test_outputs_own_choice_beats_the_default(server: ServerProcess) -> None:
    inputs = tensor("a", "FP32", [1, 1], [5]), tensor("b", "FP32", [1, 1], [3])
    outputs = [{"name": "difference", "parameters": {"binary_data": False}}, {"name": "total"}]
    reply = infer(server, "pair", *inputs, outputs=outputs, parameters={"binary_data_output": True})
    document = json.loads(reply.body[: int(reply.headers[HEADER_LENGTH])])
    assert document["outputs"][0]["data"] == [2]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 4}
    assert reply.body.endswith(np.float32(8).tobytes())


def test_answer_is_json_unless_binary_is_asked_for(server: ServerProcess) -> None:
    reply = infer_binary(server, "linear", [binary_tensor("x", "FP32", X)], X.tobytes())
    assert reply.outputs() == {"y": (2 * X).ravel().tolist()}
    assert reply.headers[HEADER_LENGTH] is None


def test_header_length_of_the_whole_body_is_json_alone(server: ServerProcess) -> None:
    given = linear_input([1, 2, 3, 4])
    assert infer_binary(server, "linear", [given], b"").outputs() == {"y": [2, 4, 6, 8]}


def test_raw_body(server: ServerProcess) -> None:
    """With header length 0 the body is the only input, one row of it."""
    row = X[:1].tobytes()
    reply = call(server, "POST", infer_path("linear"), row, {HEADER_LENGTH: "0"})
    assert_same_bits(arrays(reply)["y"], 2 * X[:1])


def test_raw_body_gives_its_shape_where_one_dimension_varies(server: ServerProcess) -> None:
    values = VALUES["FP16"].reshape(1, 6)
    body = values.tobytes()
    reply = call(server, "POST", infer_path("echo-fp16"), body, {HEADER_LENGTH: "0"})
    assert_same_bits(arrays(reply)["out_FP16"], values)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_header_length_counts_the_json_before_compression(
    server: ServerProcess, encoding: str
) -> None:
    compress: Any = gzip.compress if encoding == "gzip" else zlib.compress
    values = np.zeros((1, 4000), np.float32)
    document = {
        "inputs": [binary_tensor("in_FP32", "FP32", values)],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(document).encode()
    headers = {
        HEADER_LENGTH: str(len(head)), "content-encoding": encoding, "accept-encoding": encoding
    }  # fmt: skip
    body = compress(head + values.tobytes())
    reply = call(server, "POST", infer_path("echo-fp32"), body, headers)
    assert reply.headers["content-encoding"] == encoding
    plain = Reply(reply.status, reply.headers, zlib.decompress(reply.body, GZIP_OR_ZLIB))
    assert_same_bits(arrays(plain)["out_FP32"], values)


def test_nan_and_infinity(server: ServerProcess) -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    inputs = [binary_tensor("x", "FP32", values)]
    written = infer_binary(server, "linear", inputs, values.tobytes())
    assert b'"data":[NaN,Infinity,-Infinity,2.0]' in written.body
    given = infer_binary(
        server, "linear", inputs, values.tobytes(), parameters={"binary_data_output": True}
    )
    found = arrays(given)["y"]
    np.testing.assert_array_equal(found, values * 2)


def test_half_precision_answer_has_no_json(server: ServerProcess) -> None:
    values = VALUES["FP16"]
    refused = infer_binary(
        server, "echo-fp16", [binary_tensor("in_FP16", "FP16", values)], values.tobytes()
    )
    assert refused.status == 400
    assert "FP16" in refused.error()


@pytest.mark.parametrize("length", ["-1", "100000", "1e3", "0x10", "", "٣"])
def test_header_length_out_of_range(server: ServerProcess, length: str) -> None:
    head = json.dumps({"inputs": [linear_input([1, 2, 3, 4])]}).encode()
    headers = {HEADER_LENGTH: length.encode().decode("latin-1")}
    reply = call(server, "POST", infer_path("linear"), head, headers)
    assert reply.status == 400
    assert f"range (0, {len(head)})" in reply.error()


@pytest.mark.parametrize(
    ("size", "tail", "message"),
    [
        (31, X.tobytes(), "31 bytes of raw data"),
        (32, X.tobytes()[:-1], "31 bytes of raw data"),
        (32, X.tobytes() + b"x", "33 bytes of binary data; its inputs claim 32"),
        (33, X.tobytes() + b"x", "33 bytes of raw data"),
        (-1, X.tobytes(), "binary_data_size -1"),
        (2**70, X.tobytes(), "binary_data_size"),
        (True, X.tobytes(), "binary_data_size True"),
        ("32", X.tobytes(), "binary_data_size '32'"),
    ],
)
def test_sizes_that_contradict_each_other(
    server: ServerProcess, size: Any, tail: bytes, message: str
) -> None:
    reply = infer_binary(server, "linear", [binary_tensor("x", "FP32", X, size)], tail)
    assert reply.status == 400
    assert message in reply.error()


def test_binary_data_without_the_header(server: ServerProcess) -> None:
    head = json.dumps({"inputs": [binary_tensor("x", "FP32", X)]}).encode()
    reply = call(server, "POST", infer_path("linear"), head + X.tobytes())
    assert reply.status == 400
    assert "JSON" in reply.error()
    reply = call(server, "POST", infer_path("linear"), head)
    assert reply.status == 400
    assert "0 bytes of raw data" in reply.error()


def test_input_with_data_in_both_forms(server: ServerProcess) -> None:
    both = binary_tensor("x", "FP32", X) | {"data": X.ravel().tolist()}
    reply = infer_binary(server, "linear", [both], X.tobytes())
    assert reply.status == 400
    assert "not both" in reply.error()


def test_byte_that_is_no_boolean(server: ServerProcess) -> None:
    inputs = [binary_tensor("in_BOOL", "BOOL", np.zeros((1, 2), np.bool_))]
    reply = infer_binary(server, "echo-bool", inputs, b"\x00\x02")
    assert reply.status == 400
    assert "byte 2" in reply.error()


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        ("pair", b"12345678", "exactly one input"),
        ("linear", b"123456789012345", "15 bytes"),
        ("echo-fp32", b"12345", "5 bytes"),
    ],
)
def test_raw_body_that_fits_no_shape(
    server: ServerProcess, model: str, body: bytes, message: str
) -> None:
    reply = call(server, "POST", infer_path(model), body, {HEADER_LENGTH: "0"})
    assert reply.status == 400
    assert message in reply.error()
