"""REST's generate and generate_stream, with curl and urllib, on a server of every shape."""

import json
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SHAPES
from tests.e2e.rest_calls import Reply, call
from tests.e2e.stream_models import stream_server
from tests.fixtures.redis_servers import until_true
from tests.fixtures.servers import ServerProcess

ASKED: dict[str, Any] = {"text": "hi", "times": 3}


@pytest.fixture(scope="module")
def server(shape: str, folder: Path) -> Iterator[ServerProcess]:
    with stream_server(SHAPES[shape], folder / "store") as server:
        yield server


def generate(server: ServerProcess, document: Any, model: str = "say") -> Reply:
    body = json.dumps(document).encode()
    return call(server, "POST", f"/v2/models/{model}/generate", body)


def curl(server: ServerProcess, document: Any, model: str = "say", *more: str) -> tuple[int, bytes]:
    """Returns the status and the body of `generate_stream`."""
    url = f"http://{server.http}/v2/models/{model}/generate_stream"
    command = ["curl", "-sS", "-N", "-w", "%{http_code}", "-d", json.dumps(document), *more, url]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return int(output[-3:]), output[:-3]


def events(body: bytes) -> list[Any]:
    *found, rest = body.split(b"\n\n")
    assert rest == b""
    assert all(one.startswith(b"data: ") for one in found)
    return [json.loads(one.removeprefix(b"data: ")) for one in found]


def test_one_answer(server: ServerProcess) -> None:
    said = {"model_name": "say", "model_version": "1", "said": "hi", "left": 0}
    for document in (
        {"text": "hi", "times": 1, "temperature": 0.5},
        {"text": ["hi"], "parameters": {"times": [1], "stream": True}, "id": ""},
    ):
        reply = generate(server, document)
        assert (reply.status, reply.json()) == (200, said)
    assert generate(server, {"text": "hi", "times": 1, "id": "mine"}).json() == said | {
        "id": "mine"
    }
    reply = generate(server, {"x": [1, 2, 3, 4]}, "double")
    assert reply.json() == {"model_name": "double", "model_version": "1", "y": [2, 4, 6, 8]}
    assert generate(server, {"x": [[1, 2, 3, 4], [1, 1, 1, 1]]}, "double").status == 200


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"text": "hi", "times": 0}, "generate takes exactly one answer"),
        ({"text": "hi", "times": 2}, "generate takes exactly one answer"),
        ({"text": "hi"}, "times"),
        ({}, "text"),
        ([], "must be a JSON object"),
        ({"text": 1, "times": 1}, "must hold strings for BYTES"),
        ({"text": "hi", "times": "1"}, "must hold whole numbers for INT32"),
        ({"text": ["a", "b"], "times": 1}, "differ in batch size"),
        ({"text": [], "times": 1}, "differ in batch size"),
        ({"text": {"a": 1}, "times": 1}, "must hold strings"),
        ({"text": None, "times": 1}, "must hold strings"),
        ({"text": "hi", "times": 1, "more": {}}, "parameter 'more'"),
        ({"text": "hi", "times": 1, "parameters": 1}, "'parameters' must be an object"),
        ({"text": "hi", "times": 1, "parameters": {"times": 1}}, "occurs twice"),
        ({"text": "hi", "times": 100}, "too often"),
    ],
)
def test_refusals(server: ServerProcess, document: Any, words: str) -> None:
    reply = generate(server, document)
    assert reply.status == 400, reply.body
    assert words in reply.error()
    if words != "generate takes exactly one answer":
        status, body = curl(server, document)
        assert (status, json.loads(body)) == (400, {"error": reply.error()})


def test_unknown_names(server: ServerProcess) -> None:
    assert generate(server, ASKED, "nowhere").status == 404
    assert generate(server, ASKED, "say/versions/9").status == 404
    assert curl(server, ASKED, "nowhere")[0] == 404
    assert call(server, "GET", "/v2/models/say/generate_stream").status == 405


def test_events(server: ServerProcess) -> None:
    status, body = curl(server, ASKED)
    assert status == 200
    assert [(one["said"], one["left"]) for one in events(body)] == [("hi", 2), ("hi", 1), ("hi", 0)]
    assert curl(server, ASKED | {"times": 0}) == (200, b"")
    status, body = curl(server, {"x": [1, 2, 3, 4]}, "double")
    assert [one["y"] for one in events(body)] == [[2, 4, 6, 8]]
    status, body = curl(server, ASKED, "say", "--http1.0")
    assert (status, len(events(body))) == (200, 3)


def test_error_behind_answers_is_an_event(server: ServerProcess) -> None:
    status, body = curl(server, ASKED | {"times": 9})
    *said, failed = events(body)
    assert (status, len(said)) == (200, 5)
    assert failed.keys() == {"error"}
    assert "five" in failed["error"]


def test_long_texts(server: ServerProcess) -> None:
    text = "a, [b] {c} " * 40_000
    reply = generate(server, {"text": text, "times": 1})
    assert reply.json()["said"] == text
    assert [one["said"] for one in events(curl_file(server, {"text": text, "times": 4}))] == [
        text
    ] * 4
    assert generate(server, {"text": "x" * 5_000_000, "times": 1}).status == 413
    many = generate(server, {"x": [0] * 20_000}, "double")
    assert (many.status, "8192" in many.error()) == (400, True)


def curl_file(server: ServerProcess, document: Any) -> bytes:
    url = f"http://{server.http}/v2/models/say/generate_stream"
    command = ["curl", "-sS", "-N", "-d", "@-", url]
    given = json.dumps(document).encode()
    return subprocess.run(command, check=True, input=given, stdout=subprocess.PIPE).stdout


def test_caller_who_disconnects_ends_the_model_s_work(server: ServerProcess, folder: Path) -> None:
    ended = folder / "ended"
    ended.unlink(missing_ok=True)
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", "/v2/models/endless/generate_stream", b'{"x": [1, 2, 3, 4]}')
    response = connection.getresponse()
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-request-id"]
    assert response.readline().startswith(b"data: {")
    assert not ended.exists()
    response.close()
    connection.close()
    until_true(ended.exists)
