"""Invalid REST requests: a precise 4xx each time, and the next valid request succeeds."""

import gzip
import json
import re
import socket
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import MAX_REQUEST_BYTES
from tests.e2e.rest_calls import (
    Reply,
    call,
    infer,
    infer_path,
    linear_input,
    lookup_inputs,
    post,
    tensor,
)
from tests.fixtures.servers import ServerProcess

ROW = [1.0, 2.0, 3.0, 4.0]
X = linear_input(ROW)
LINEAR = infer_path("linear")
OVER_THE_LIMIT = b" " * (MAX_REQUEST_BYTES + 1)


@pytest.fixture(scope="module", autouse=True)
def _no_request_is_left(server: ServerProcess) -> Iterator[None]:
    """A scrape of 20 models takes as long as a test, and what is left stays."""
    yield
    assert server.metric("flambeau_in_flight_requests") == 0


@pytest.fixture(autouse=True)
def _the_next_good_request_is_answered(server: ServerProcess) -> Iterator[None]:
    yield
    assert infer(server, "linear", X).outputs() == {"y": [2, 4, 6, 8]}


def x(**changes: Any) -> dict[str, Any]:
    return {"inputs": [X | changes]}


def data(values: object) -> dict[str, Any]:
    return x(data=values)


DOCUMENTS: dict[str, tuple[Any, str]] = {
    # the request as a whole
    "not an object": ([X], "must be a JSON object"),
    "null": (None, "must be a JSON object"),
    "no inputs": ({}, "'inputs' is missing"),
    "inputs no list": ({"inputs": X}, "'inputs' is missing or not a list"),
    "inputs of numbers": ({"inputs": [1]}, "not a list of objects"),
    "id no text": (x() | {"id": 7}, "id must be a string, and is 7"),
    "parameters no object": (x() | {"parameters": []}, "'parameters' of the request"),
    "parameter nested": (x() | {"parameters": {"p": {}}}, "parameter 'p' of the request"),
    "parameter null": (x() | {"parameters": {"p": None}}, "parameter 'p' of the request"),
    # names
    "missing input": ({"inputs": []}, "input 'x' is missing"),
    "extra input": (
        {"inputs": [X, tensor("xx", "FP32", [1, 4], ROW)]},
        r"unknown input 'xx' \(did you mean 'x'\?\)",
    ),
    "duplicate input": ({"inputs": [X, X]}, "input 'x' occurs twice"),
    "input without a name": ({"inputs": [{"shape": [1, 4]}]}, "name of an input"),
    "unknown output": (x() | {"outputs": [{"name": "z"}]}, "unknown output 'z'"),
    "output twice": (x() | {"outputs": [{"name": "y"}, {"name": "y"}]}, "asked for twice"),
    "outputs no list": (x() | {"outputs": {"name": "y"}}, "'outputs'"),
    "output without a name": (x() | {"outputs": [{}]}, "name of an output"),
    # datatype
    "wrong datatype": (x(datatype="FP64"), "has datatype FP64; expected FP32"),
    "unknown datatype": (x(datatype="FLOAT"), "datatype 'FLOAT' is unknown"),
    "datatype without JSON": (x(datatype="FP16"), "no JSON form; send it as binary"),
    "datatype no text": (x(datatype=32), "datatype of input 'x' must be a string"),
    # shape
    "wrong shape": (x(shape=[2, 2], data=ROW), r"has shape \[2,2\]; expected \[batch,4\]"),
    "wrong rank": (x(shape=[4], data=ROW), r"has shape \[4\]; expected \[batch,4\]"),
    "scalar shape": (x(shape=[], data=[1]), r"has shape \[\]; expected \[batch,4\]"),
    "negative shape": (x(shape=[-1, 4]), "shape of input 'x'"),
    "fractional shape": (x(shape=[1.0, 4]), "shape of input 'x'"),
    "boolean shape": (x(shape=[True, 4]), "shape of input 'x'"),
    "shape missing": ({"inputs": [{"name": "x", "datatype": "FP32", "data": ROW}]}, "shape"),
    "shape beyond memory": (x(shape=[2**62, 2**62]), "larger than any array"),
    "no rows": (x(shape=[0, 4], data=[]), "0 rows"),
    "too many rows": (x(shape=[9, 4], data=[0] * 36), "9 rows; at most 8"),
    # data
    "too few elements": (data([1, 2, 3]), "holds 3 elements; .* takes 4"),
    "too many elements": (data([1, 2, 3, 4, 5]), "holds 5 elements; .* takes 4"),
    "nested otherwise": (data([[1, 2], [3, 4]]), r"nested as \[2, 2\]; expected \[1, 4\]"),
    "ragged": (data([[1, 2, 3], [4]]), "ragged"),
    "mixed nesting": (data([[1, 2, 3], 4]), "ragged"),
    "data no list": (data(1), "'data' is a number"),
    "data an object": (data({"0": 1}), "'data' is an object"),
    "text for a number": (data(["1", 2, 3, 4]), "a string"),
    "boolean for a number": (data([True, 2, 3, 4]), "a boolean"),
    "null for a number": (data([None, 2, 3, 4]), "null"),
    "out of range": (data([1e39, 2, 3, 4]), "outside the range of FP32"),
    "no data": ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]}, "needs either"),
}


@pytest.mark.parametrize(("document", "message"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_document(server: ServerProcess, document: object, message: str) -> None:
    reply = post(server, LINEAR, document)
    assert reply.status == 400
    assert re.search(message, reply.error()), reply.error()


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        ("INT8", 128, "outside the range of INT8"),
        ("UINT8", -1, "outside the range of UINT8"),
        ("INT64", 2**63, "outside the range of INT64"),
        ("INT32", 1.5, "whole numbers for INT32; it holds a fraction"),
        ("INT32", 1.0, "a fraction"),
        ("BOOL", 1, "true or false for BOOL; it holds a number"),
        ("INT32", "1", "a string"),
    ],
)
def test_value_that_does_not_fit_its_datatype(
    server: ServerProcess, datatype: str, value: object, message: str
) -> None:
    given = tensor(f"in_{datatype}", datatype, [1, 1], [value])
    reply = infer(server, f"echo-{datatype.lower()}", given)
    assert reply.status == 400
    assert message in reply.error()


def test_inputs_of_different_batch_sizes(server: ServerProcess) -> None:
    reply = infer(
        server, "pair", tensor("a", "FP32", [1, 1], [1]), tensor("b", "FP32", [2, 1], [1, 2])
    )
    assert reply.status == 400
    assert "differ in batch size" in reply.error()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "empty"),
        (b'{"inputs": [', "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (json.dumps(x()).encode("utf-16"), "not valid JSON"),
        (b'{"id": "\xe9", "inputs": []}', "not valid JSON"),
        (b'{"inputs": [NaN, nan]}', "not valid JSON"),
        (b"[" * 100_000, "the JSON has 100000 members and lists"),
        (b'{"inputs": []} trailing', "not valid JSON"),
        (b"\x00" * 10, "not valid JSON"),
    ],
    ids=["empty", "cut", "bytes", "utf-16", "latin-1", "nan", "deep", "tail", "NUL"],
)
def test_body_that_is_no_json(server: ServerProcess, body: bytes, message: str) -> None:
    reply = call(server, "POST", LINEAR, body)
    assert reply.status == 400
    assert message in reply.error()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v2/models/linaer", r"'linaer' is not served \(did you mean 'linear'\?\)"),
        ("/v2/models/linear/versions/7", "no served version '7'; served: 1, 2"),
        ("/v2/models/linear/versions/one", "no served version 'one'"),
        ("/v2/models/linear/versions/-1", "no served version '-1'"),
        ("/v2/models/linear/versions/01", "no served version '01'"),
        ("/v2/models/linear/versions/%D9%A1", "no served version"),
        ("/v2/models/..", "not served"),
        ("/v2/models/%00", "not served"),
        ("/v2/models/linear/versions/" + "9" * 5000, "no served version"),
    ],
)
@pytest.mark.parametrize(("method", "suffix"), [("GET", ""), ("GET", "/ready"), ("POST", "/infer")])
def test_unknown_model_or_version(
    server: ServerProcess, path: str, message: str, method: str, suffix: str
) -> None:
    reply = call(server, method, path + suffix, json.dumps(x()).encode() if suffix else b"")
    assert reply.status == 404
    assert re.search(message, reply.error()), reply.error()


@pytest.mark.parametrize("version", ["", "1"])
def test_model_that_is_not_ready_says_why(server: ServerProcess, version: str) -> None:
    for reply in (
        infer(server, "refused", X, version=version),
        call(server, "GET", f"/v2/models/refused{f'/versions/{version}' if version else ''}"),
    ):
        assert reply.status == 503
        assert "replaying the golden rows on this machine" in reply.error()
        assert "'refused'" in reply.error()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", LINEAR, "POST"),
        ("PUT", LINEAR, "POST"),
        ("DELETE", "/v2/models/linear", "GET"),
        ("POST", "/v2/models/linear/ready", "GET"),
        ("POST", "/v2/health/live", "GET"),
        ("POST", "/v2", "GET"),
        ("PATCH", "/docs", "GET"),
    ],
)
def test_wrong_method(server: ServerProcess, method: str, path: str, allowed: str) -> None:
    reply = call(server, method, path, json.dumps(x()).encode())
    assert reply.status == 405
    assert allowed in reply.headers["allow"].split(", ")
    assert f"{method} is not allowed on {path}; use" in reply.error()


@pytest.mark.parametrize("path", ["/", "/v3", "/v2/models", "/v2/models/linear/nonsense", "//"])
def test_unknown_path(server: ServerProcess, path: str) -> None:
    reply = call(server, "GET", path)
    assert reply.status == 404
    assert "unknown path" in reply.error()


def assert_too_large(reply: Reply) -> None:
    assert reply.status == 413
    assert f"over {MAX_REQUEST_BYTES} bytes" in reply.error()


def test_body_over_the_limit(server: ServerProcess) -> None:
    assert_too_large(call(server, "POST", LINEAR, OVER_THE_LIMIT))


def test_body_of_exactly_the_limit_is_read(server: ServerProcess) -> None:
    """Its content is refused, not its size."""
    document = json.dumps(x()).encode()
    body = document + b" " * (MAX_REQUEST_BYTES - len(document))
    for sent, fields in ((body, {}), (gzip.compress(body, 1), {"content-encoding": "gzip"})):
        reply = call(server, "POST", LINEAR, sent, fields)
        assert reply.status == 400
        assert f"the JSON has {MAX_REQUEST_BYTES} bytes" in reply.error()


def test_chunked_body_over_the_limit(server: ServerProcess) -> None:
    chunks = (OVER_THE_LIMIT[i : i + 65_536] for i in range(0, len(OVER_THE_LIMIT), 65_536))
    assert_too_large(call(server, "POST", LINEAR, chunks))


def test_declared_length_over_the_limit_is_refused_before_the_body(server: ServerProcess) -> None:
    head = f"POST {LINEAR} HTTP/1.1\r\nhost: x\r\ncontent-length: {2**40}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_bomb(server: ServerProcess, encoding: str, compress: Any) -> None:
    bomb = compress(OVER_THE_LIMIT, 9)
    assert len(bomb) < MAX_REQUEST_BYTES / 500
    assert_too_large(call(server, "POST", LINEAR, bomb, {"content-encoding": encoding}))


GZIPPED = gzip.compress(json.dumps(x()).encode(), mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body", "message"),
    [
        ("gzip", b"not gzip", "not valid gzip data"),
        ("gzip", GZIPPED[:-9], "is truncated"),
        ("gzip", GZIPPED + b"tail", "continues after its gzip data"),
        ("gzip", GZIPPED + GZIPPED, "continues after its gzip data"),
        ("gzip", GZIPPED[:20] + bytes([GZIPPED[20] ^ 1]) + GZIPPED[21:], "not valid gzip data"),
        ("gzip", b"", "is truncated"),
        ("br", b"x", "Content-Encoding 'br' is not supported"),
        ("gzip, gzip", b"x", "is not supported"),
    ],
)
def test_broken_compression(
    server: ServerProcess, encoding: str, body: bytes, message: str
) -> None:
    reply = call(server, "POST", LINEAR, body, {"content-encoding": encoding})
    assert reply.status == 400
    assert message in reply.error()


def test_caller_that_hangs_up_in_mid_body(server: ServerProcess) -> None:
    before = server.metric("flambeau_requests_total", code="499")
    head = f"POST {LINEAR} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n" + "{"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
        connection.sendall(head.encode())
    server.wait_for_metric(before + 1, "flambeau_requests_total", code="499")


def test_what_is_no_http_at_all(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        head, _, body = connection.recv(1000).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert list(json.loads(body)) == ["error"]


@pytest.mark.parametrize("start", [b"GET /v2?", b"GET /v2 HTTP/1.1\r\nx-long: "])
def test_head_that_never_ends(server: ServerProcess, start: bytes) -> None:
    """The server closes the connection, after a response that a busy sender may not read."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
        connection.sendall(start)
        with pytest.raises(OSError, match=r"reset|pipe"):
            connection.sendall(b"x" * 64 * 2**20)
    assert call(server, "GET", "/v2").status == 200


def test_head_as_long_as_allowed(server: ServerProcess) -> None:
    assert call(server, "GET", "/v2", headers={"x-long": "x" * 60_000}).status == 200


def test_bad_item_harms_no_neighbour_in_its_batch(server: ServerProcess) -> None:
    """One request keeps the worker busy, so that the next three end up in one batch."""
    queue_depth = ("flambeau_queue_depth", "lookup")
    with ThreadPoolExecutor(4) as threads:
        busy = threads.submit(infer, server, "lookup", *lookup_inputs(1, work=100_000))
        server.wait_for_metric(1, "flambeau_in_flight_requests")
        server.wait_for_metric(0, queue_depth[0], model=queue_depth[1])
        good, bad, fine = (
            threads.submit(infer, server, "lookup", *lookup_inputs(index), id=f"neighbour-{index}")
            for index in (2, 99, 3)
        )
        server.wait_for_metric(3, queue_depth[0], model=queue_depth[1])
        assert not busy.done(), "the batch was never held back; give it more work"
    assert busy.result().outputs() == {"value": [1]}
    assert good.result().outputs() == {"value": [2]}
    assert fine.result().outputs() == {"value": [3]}
    assert bad.result().status == 500
    assert "model 'lookup' version 1 failed on this input" in bad.result().error()
    server.wait_for_log(message="batch failed; running its requests one by one", requests=3)
    server.wait_for_log(message="backend failed", request_id="neighbour-99")
