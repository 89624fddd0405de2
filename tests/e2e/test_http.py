"""HTTP itself: compression, chunks, connection reuse, HEAD."""

import gzip
import http.client
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.rest_calls import call, call_on, infer, infer_path, linear_input, tensor
from tests.fixtures.servers import ServerProcess

INFER = json.dumps({"inputs": [linear_input([1, 2, 3, 4])]}).encode()


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


def test_descriptions_of_models_are_plain(server: ServerProcess) -> None:
    """tritonclient.http.aio says that it takes gzip, and inflates inferences alone."""
    headers = {"accept-encoding": "gzip, deflate"}
    for path in ("/v2/models/pair/config", "/v2/models/stats"):
        reply = call(server, "GET", path, headers=headers)
        assert reply.headers["content-encoding"] is None
        assert len(reply.body) > 1024
        assert reply.json()
    document = call(server, "GET", "/openapi.json", headers=headers)
    assert document.headers["content-encoding"] == "gzip"


def test_chunked_upload(server: ServerProcess) -> None:
    chunks = (INFER[i : i + 1] for i in range(len(INFER)))
    assert call(server, "POST", infer_path("linear"), chunks).outputs() == {"y": [2, 4, 6, 8]}


def test_caller_that_waits_to_be_told_to_continue(server: ServerProcess) -> None:
    """The behaviour of curl with a large body."""
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
