"""REST, in JSON: health, metadata, inference, and HTTP itself."""

import gzip
import http.client
import json
import re
import socket
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.e2e.rest_calls import (
    Reply,
    call,
    call_on,
    infer,
    infer_path,
    linear_input,
    lookup_inputs,
    post,
    tensor,
)
from tests.e2e.tensor_values import JSON_DATATYPES, VALUES, assert_same_bits, echo_model
from tests.fixtures.servers import ServerProcess

ROW = [1.0, 2.0, 3.0, 4.0]
INFER = json.dumps({"inputs": [linear_input(ROW)]}).encode()


def get(server: ServerProcess, path: str) -> Reply:
    return call(server, "GET", path)


def test_live_and_ready(server: ServerProcess) -> None:
    live, ready = get(server, "/v2/health/live"), get(server, "/v2/health/ready")
    assert (live.status, live.json()) == (200, {"live": True})
    assert (ready.status, ready.json()) == (200, {"ready": True})


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
            "live_version": "2",
            "max_batch_size": "8",
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
    assert re.fullmatch("[0-9a-f]{32}", reply.headers["x-request-id"])
    assert reply.headers["x"] is None


def test_request_id_of_the_header_is_echoed(server: ServerProcess) -> None:
    reply = infer(server, "linear", linear_input(ROW), headers={"x-request-id": "from-proxy"})
    assert reply.headers["x-request-id"] == "from-proxy"
    assert "id" not in reply.json()


def test_requests_without_an_id_get_one_each(server: ServerProcess) -> None:
    ids = {infer(server, "linear", linear_input(ROW)).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", given) for given in ids)


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("GZIP", gzip.compress),
        ("identity", bytes),
    ],
)
def test_compressed_request(server: ServerProcess, encoding: str, compress: Any) -> None:
    headers = {"content-encoding": encoding}
    reply = call(server, "POST", infer_path("linear"), compress(INFER), headers)
    assert reply.outputs() == {"y": [2.0, 4.0, 6.0, 8.0]}


@pytest.mark.parametrize(
    ("accept", "encoding", "window"),
    [
        ("gzip", "gzip", zlib.MAX_WBITS | 16),
        ("deflate", "deflate", zlib.MAX_WBITS),
        ("br, gzip;q=0.5", "gzip", zlib.MAX_WBITS | 16),
    ],
)
def test_compressed_answer(server: ServerProcess, accept: str, encoding: str, window: int) -> None:
    large = tensor("in_FP32", "FP32", [1, 1000], [0.5] * 1000)
    reply = infer(server, "echo-fp32", large, headers={"accept-encoding": accept})
    assert reply.headers["content-encoding"] == encoding
    document = json.loads(zlib.decompress(reply.body, window))
    assert document["outputs"][0]["data"] == [0.5] * 1000


@pytest.mark.parametrize("accept", ["identity", "br", "gzip;q=0", ""])
def test_answer_is_plain_when_the_caller_takes_nothing_else(
    server: ServerProcess, accept: str
) -> None:
    large = tensor("in_FP32", "FP32", [1, 1000], [0.5] * 1000)
    reply = infer(server, "echo-fp32", large, headers={"accept-encoding": accept})
    assert reply.headers["content-encoding"] is None
    assert reply.outputs() == {"out_FP32": [0.5] * 1000}


def test_chunked_upload(server: ServerProcess) -> None:
    chunks = (INFER[i : i + 1] for i in range(len(INFER)))
    assert call(server, "POST", infer_path("linear"), chunks).outputs() == {"y": [2, 4, 6, 8]}


def test_caller_that_waits_to_be_told_to_continue(server: ServerProcess) -> None:
    """As curl does with a large body."""
    head = (
        f"POST {infer_path('linear')} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"content-length: {len(INFER)}\r\nexpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as stream:
        stream.sendall(head.encode())
        assert stream.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.sendall(INFER)
        assert _read_answers(stream, 1) == [[2, 4, 6, 8]]


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    connection.connect()
    yield connection
    connection.close()


def test_keep_alive(connection: http.client.HTTPConnection) -> None:
    before = connection.sock
    for _ in range(3):
        assert call_on(connection, "POST", infer_path("linear"), INFER).status == 200
    assert call_on(connection, "POST", infer_path("linear"), b"nonsense").status == 400
    assert call_on(connection, "GET", "/nowhere").status == 404
    assert call_on(connection, "POST", infer_path("linear"), INFER).status == 200
    assert connection.sock is before, "the server closed the connection"


def test_pipelining_answers_in_order(connection: http.client.HTTPConnection) -> None:
    bodies = [json.dumps({"inputs": [linear_input([i] * 4)]}).encode() for i in range(20)]
    connection.sock.sendall(
        b"".join(
            b"POST /v2/models/linear/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
            for body in bodies
        )
    )
    assert _read_answers(connection.sock, len(bodies)) == [[2.0 * i] * 4 for i in range(20)]


def _read_answers(stream: socket.socket, count: int) -> list[list[float]]:
    answers: list[list[float]] = []
    with stream.makefile("rb") as file:
        for _ in range(count):
            assert file.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = http.client.parse_headers(file)
            document = json.loads(file.read(int(headers["content-length"])))
            answers.append(document["outputs"][0]["data"])
    return answers


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/health/live", 200),
        ("/v2", 200),
        ("/v2/models/linear", 200),
        ("/v2/models/nowhere", 404),
        ("/v2/models/linear/infer", 405),
    ],
)
def test_head_has_no_body(connection: http.client.HTTPConnection, path: str, status: int) -> None:
    reply = call_on(connection, "HEAD", path)
    assert (reply.status, reply.body) == (status, b"")
    assert int(reply.headers["content-length"]) > 0
    assert call_on(connection, "GET", "/v2/health/live").status == 200


def test_openapi_names_only_what_there_is(server: ServerProcess) -> None:
    document = get(server, "/openapi.json").json()
    assert document["openapi"].startswith("3.")
    operations = [
        (method, path) for path, item in document["paths"].items() for method in ("get", "post")
        if method in item
    ]  # fmt: skip
    assert len(operations) == 9
    for method, path in operations:
        url = path.format(model="linear", version="1")
        reply = call(server, method.upper(), url, INFER if method == "post" else b"")
        assert reply.status == 200, path
        assert str(reply.status) in document["paths"][path][method]["responses"]


def test_openapi_references_resolve(server: ServerProcess) -> None:
    text = get(server, "/openapi.json").body.decode()
    document = json.loads(text)
    references = set(re.findall(r'"\$ref": ?"#/components/schemas/(\w+)"', text))
    assert references
    assert text.count('"$ref"') == len(re.findall(r'"#/components/schemas/\w+"', text))
    assert references <= set(document["components"]["schemas"])


@pytest.mark.parametrize("version", ["", "/versions/{version}"])
def test_openapi_documents_the_errors_of_infer(server: ServerProcess, version: str) -> None:
    document = get(server, "/openapi.json").json()
    responses = document["paths"][f"/v2/models/{{model}}{version}/infer"]["post"]["responses"]
    assert {"200", "400", "404", "413", "500", "501", "503", "504"} <= set(responses)


def test_docs_need_no_other_host(server: ServerProcess) -> None:
    reply = get(server, "/docs")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    page = reply.body.decode()
    assert "/openapi.json" in page
    assert not re.findall(r"https?:|[\"'(]//", page)


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
        outputs=[{"name": "y", "parameters": {"classification": 3}}],
    )  # fmt: skip
    assert reply.status == 501
    assert "classification" in reply.error()
    assert post(server, "/v2/repository/index", {}).status == 404
