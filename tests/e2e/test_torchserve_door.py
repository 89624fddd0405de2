"""TorchServe's REST API as its users call it: archives, management, tokens; and bad input."""

import concurrent.futures
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.gateway.edges.torchserve.request_parts import MAX_PARTS
from tests.fixtures.model_archives import write_archive
from tests.fixtures.torchserve_server import (
    Said,
    TorchServeProcess,
    running_torchserve,
    silent_site,
)

SHOW = """
    import json

    def shown(row, headers):
        texts = {k: v.decode() if isinstance(v, (bytes, bytearray)) else v for k, v in row.items()}
        told = {k: headers.get(k) for k in ("explain", "url_path", "x-mine", "describe")}
        return json.dumps(texts | {"told": told})

    def handle(data, context):
        if data is None:
            return None
        headers = [context.get_all_request_header(place) for place in range(len(data))]
        return [shown(*one) for one in zip(data, headers)]
    """
"""Answers with the parts of a request and some headers."""
MOODY = """
    import os

    def handle(data, context):
        if data is None:
            return None
        if context.get_request_header(0, "describe"):
            return [{"odd": "\\ud800"}]
        text = bytes(data[0]["body"]).decode()
        if text == "raise":
            raise ValueError("no")
        if text == "exit":
            os._exit(3)
        if text == "status":
            context.set_response_status(code=299, phrase="Odd", idx=0)
            context.set_response_header(0, "X-Mine", "yes")
            context.set_response_header(0, "Content-Length", "1")
            context.set_response_content_type(0, "text/x-mine")
        if text == "bodiless":
            context.set_response_status(code=204, idx=0)
        return [{"said": text}]
    """
"""Does what the request says."""
STREAM = """
    from ts.handler_utils.utils import send_intermediate_predict_response

    def handle(data, context):
        if data is None:
            return None
        count = int(bytes(data[0]["body"]))
        for place in range(count):
            sent = [f"part {place} "] * len(data)
            send_intermediate_predict_response(sent, context.request_ids, "Sent", 200, context)
        return ["end"] * len(data)
    """
"""Sends as many intermediate answers as the request says."""
UNWILLING = """
    class Unwilling:
        def initialize(self, context):
            raise RuntimeError("never")

        def handle(self, data, context):
            return ["x"]
    """
MULTIPART = {"content-type": "multipart/form-data; boundary=b"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PARTS = b'--b\r\nContent-Disposition: form-data; name="model_name"\r\n\r\nshow\r\n--b--\r\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeProcess]:
    folder = tmp_path_factory.mktemp("torchserve")
    archives = folder / "archives"
    archives.mkdir()
    write_archive(archives, name="echo")
    write_archive(archives, SHOW, name="show")
    write_archive(archives, MOODY, name="moody")
    write_archive(archives, STREAM, name="stream")
    write_archive(archives, UNWILLING, name="unwilling")
    for version in ("1.0", "2.0"):
        (archives / version).mkdir()
        path = write_archive(archives / version, name="many", modelVersion=version)
        path.rename(archives / f"many-{version}.mar")
        (archives / version).rmdir()
    arguments = ("--disable-token-auth", "--enable-model-api")
    models = "--models=mine=echo.mar,show.mar,moody.mar,stream.mar,gone.mar"
    with running_torchserve(folder, *arguments, models, max_request_size="1000000") as running:
        yield running


def error(code: int, kind: str, message: str) -> dict[str, object]:
    """Returns the document of an error."""
    return {"code": code, "type": kind, "message": message}


def test_the_start_says_what_became_of_the_configuration(server: TorchServeProcess) -> None:
    lines = server.output.all()
    assert "registered mine 1.0" in lines
    assert "serving mine 1.0" in lines
    assert "NOT registered gone.mar: Model not found at: gone.mar" in lines
    assert server.call("GET", "/ping").document == {"status": "Healthy"}
    listed = server.manage("GET", "/models").document
    assert listed == {
        "models": [
            {"modelName": "mine", "modelUrl": "echo.mar"},
            *({"modelName": one, "modelUrl": f"{one}.mar"} for one in ("moody", "show", "stream")),
        ]
    }
    (described,) = server.manage("GET", "/models/mine").document
    assert described["loadedAtStartup"] is True
    assert [one["status"] for one in described["workers"]] == ["READY"]


def test_a_prediction_is_the_handlers_bytes_with_torchserves_headers(
    server: TorchServeProcess,
) -> None:
    said = server.predict("mine", b"\0\xff", x_request_id="my-id")
    assert (said.status, said.body) == (200, b"\0\xff")
    assert said.headers["x-request-id"] == "my-id"
    assert said.headers["pragma"] == "no-cache"
    assert said.headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert said.headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
    assert "content-type" not in said.headers
    assert server.predict("mine/1.0", b"x").body == b"x"


@pytest.mark.parametrize(
    ("path", "body", "content_type", "shown"),
    [
        ("/predictions/show", b'{"a":[1]}', "application/json", {"body": {"a": [1]}}),
        ("/predictions/show", b"x", "text/plain", {"body": "x"}),
        ("/predictions/show", b"a=1&b=x+y", "application/x-www-form-urlencoded",
         {"a": "1", "b": "x y"}),
        ("/v1/models/show:predict", b"x", "text/plain", {"body": "x"}),
        ("/v2/models/show/infer", b"x", "text/plain", {"body": "x"}),
        ("/models/show/invoke", b"x", "text/plain", {"body": "x"}),
        ("/invocations?model_name=show&z=1", b"x", "text/plain",
         {"model_name": "show", "z": "1", "body": "x"}),
        ("/invocations?z=1", b"model_name=show&a=1", "application/x-www-form-urlencoded",
         {"z": "1", "model_name": "show", "a": "1"}),
        ("/invocations", PARTS, "multipart/form-data; boundary=b", {"model_name": "show"}),
        ("/show/1.0/predict?q=1", b"x", "text/plain", {"q": "1", "body": "x"}),
    ],
)  # fmt: skip
def test_all_forms_of_a_body_and_a_path(
    server: TorchServeProcess, path: str, body: bytes, content_type: str, shown: object
) -> None:
    said = server.call("POST", path, body, {"content-type": content_type})
    found = said.document
    del found["told"]
    assert (said.status, found) == (200, shown)


def test_parts_of_a_multipart_body_reach_the_handler(server: TorchServeProcess) -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="data"; filename="f"\r\n'
        b"Content-Type: text/plain\r\n\r\nhello\r\n"
        b'--b\r\nContent-Disposition: form-data; name="more"\r\n\r\nworld\r\n--b--\r\n'
    )
    said = server.predict("show", body, **MULTIPART)
    assert (said.document["data"], said.document["more"]) == ("hello", "world")


def test_explanations_and_the_rest_of_a_path_are_told_to_the_handler(
    server: TorchServeProcess,
) -> None:
    said = server.call("POST", "/explanations/show/1.0/some/where", b"x", {"X-Mine": "v"})
    assert said.document["told"] == {
        "explain": "True", "url_path": "some/where", "x-mine": "v", "describe": None,
    }  # fmt: skip
    assert server.predict("show").document["told"]["explain"] == "False"


def test_status_and_headers_of_a_handler(server: TorchServeProcess) -> None:
    said = server.predict("moody", b"status")
    assert (said.status, said.document) == (299, {"said": "status"})
    assert said.headers["x-mine"] == "yes"
    assert said.headers["content-type"] == "text/x-mine"
    assert int(said.headers["content-length"]) == len(said.body)
    assert server.predict("moody", b"bodiless").status == 204


def test_a_failing_handler_harms_nobody(server: TorchServeProcess) -> None:
    said = server.predict("moody", b"raise")
    failed = error(503, "InternalServerException", "Prediction failed")
    assert (said.status, said.document) == (503, failed)
    said = server.predict("moody", b"exit")
    died = error(500, "InternalServerException", "Worker died.")
    assert (said.status, said.document) == (500, died)
    assert server.predict("mine", b"x").body == b"x"
    assert server.predict("moody", b"well").document == {"said": "well"}


def test_a_description_that_utf8_does_not_have_is_answered(server: TorchServeProcess) -> None:
    (facts,) = server.manage("GET", "/models/moody?customized=true").document
    assert facts["customizedMetadata"] == {"odd": "?"}


def test_intermediate_answers_come_in_chunks(server: TorchServeProcess) -> None:
    said = server.predict("stream", b"3")
    assert said.body == b"part 0 part 1 part 2 end"
    assert said.headers["transfer-encoding"] == "chunked"
    assert said.headers["ts_stream_next"] == "true"
    said = server.predict("stream", b"0")
    assert (said.body, said.headers["content-length"]) == (b"end", "3")


def test_a_caller_that_leaves_a_stream_stops_the_handler(server: TorchServeProcess) -> None:
    for _ in range(3):
        connection = http.client.HTTPConnection(
            "127.0.0.1", server.ports["inference_address"], timeout=60
        )
        connection.request("POST", "/predictions/stream", b"1000000")
        assert connection.getresponse().read(6) == b"part 0"
        connection.close()
    assert server.predict("stream", b"1").body == b"part 0 end"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/predictions/none", error(404, "ModelNotFoundException",
         "Model not found: none")),
        ("POST", "/predictions/mine/9", error(404, "ModelVersionNotFoundException",
         "Model version: 9 does not exist for model: mine")),
        ("GET", "/predictions", error(404, "ResourceNotFoundException",
         "Requested resource is not found, please refer to API document.")),
        ("GET", "/v2/health/ready", error(404, "ResourceNotFoundException",
         "Requested resource is not found, please refer to API document.")),
        ("GET", "/models", error(404, "ResourceNotFoundException",
         "Requested resource is not found, please refer to API document.")),
        ("GET", "/", error(405, "MethodNotAllowedException",
         "Requested method is not allowed, please refer to API document.")),
        ("POST", "/invocations", error(400, "BadRequestException",
         "Parameter model_name is required.")),
        ("OPTIONS", "/invocations", error(400, "BadRequestException",
         "Parameter model_name is required.")),
        ("POST", "/invocations?model_name=none", error(404, "ModelNotFoundException",
         "Model not found: none")),
        ("POST", "/models//invoke", error(404, "ModelNotFoundException", "Model not found: ")),
        ("POST", "/predictions?model_name=mine", error(404, "ResourceNotFoundException",
         "Requested resource is not found, please refer to API document.")),
    ],
)  # fmt: skip
def test_errors_of_inference(
    server: TorchServeProcess, method: str, path: str, expected: dict[str, object]
) -> None:
    said = server.call(method, path, b"x")
    assert (said.status, said.document) == (expected["code"], expected)
    assert said.headers["content-type"] == "application/json"


def test_the_api_describes_itself(server: TorchServeProcess) -> None:
    for path in ("/", "/api-description"):
        document = server.call("OPTIONS", path).document
        assert "/predictions/{model_name}" in document["paths"]
        assert "/models" not in document["paths"]
    managed = server.manage("OPTIONS", "/").document
    assert set(managed["paths"]["/models"]) == {"get", "post"}
    document = server.call("OPTIONS", "/predictions/mine").document
    assert set(document["paths"]) == {"/predictions/mine"}
    assert server.call("OPTIONS", "/predictions/none").status == 404


def test_the_life_of_a_model(server: TorchServeProcess) -> None:
    def said(method: str, path: str) -> tuple[int, str]:
        found = server.manage(method, path)
        document = found.document
        return found.status, document.get("status") or document["message"]

    registered = 'Model "many" Version: 1.0 registered with 0 initial workers. Use scale workers '
    registered += "API to add workers for the model."
    assert said("POST", "/models?url=many-1.0.mar") == (200, registered)
    assert said("POST", "/models?url=many-1.0.mar") == (
        409, "Model version 1.0 is already registered for model many",
    )  # fmt: skip
    unserved = server.predict("many", b"x")
    assert unserved.status == 503
    assert unserved.document["message"].startswith('Model "many" has no worker to serve inference')
    assert said("GET", "/models/many?customized=true")[0] == 503
    assert said("PUT", "/models/many?min_worker=1&synchronous=true") == (
        200, "Workers scaled to 1 for model: many",
    )  # fmt: skip
    assert server.predict("many", b"x").body == b"x"
    assert said("POST", "/models?url=many-2.0.mar&initial_workers=1") == (
        200, 'Model "many" Version: 2.0 registered with 1 initial workers',
    )  # fmt: skip
    assert [one["modelVersion"] for one in server.manage("GET", "/models/many/all").document] == [
        "1.0", "2.0",
    ]  # fmt: skip
    assert said("DELETE", "/models/many") == (403, "Cannot remove default version for model many")
    assert said("PUT", "/models/many/2.0/set-default") == (
        200, 'Default version successfully updated for model "many" to "2.0"',
    )  # fmt: skip
    assert said("DELETE", "/models/many/1.0") == (200, 'Model "many" unregistered')
    assert server.predict("many/1.0", b"x").status == 404
    assert server.predict("many", b"x").body == b"x"
    assert said("PUT", "/models/many?min_worker=0&synchronous=true")[0] == 200
    assert server.predict("many", b"x").status == 503
    assert said("DELETE", "/models/many") == (200, 'Model "many" unregistered')
    assert server.predict("many", b"x").status == 404


def test_a_model_whose_workers_do_not_start_is_not_registered(server: TorchServeProcess) -> None:
    said = server.manage("POST", "/models?url=unwilling.mar&initial_workers=1&synchronous=true")
    words = "Failed to start workers for model unwilling version: 1.0"
    assert (said.status, said.document["message"]) == (500, words)
    assert server.manage("GET", "/models/unwilling").status == 404


def test_no_request_is_lost_when_its_model_is_scaled_and_unregistered(
    server: TorchServeProcess,
) -> None:
    register = "/models?url=echo.mar&model_name=busy&initial_workers=1"
    assert server.manage("POST", register).status == 200
    over = threading.Event()

    def ask() -> set[int]:
        found = set()
        while not over.is_set():
            found.add(server.predict("busy", b"x").status)
        return found

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask) for _ in range(4)]
        scaled = server.manage("PUT", "/models/busy?min_worker=2&synchronous=true")
        over.set()
        assert scaled.status == 200
        assert set().union(*(one.result() for one in asked)) == {200}
        over.clear()
        asked = [threads.submit(ask) for _ in range(4)]
        assert server.manage("DELETE", "/models/busy").status == 200
        over.set()
        assert set().union(*(one.result() for one in asked)) <= {200, 404}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/m.mar", "file:///etc/passwd", "..%2Fx.mar"])
def test_archives_that_cannot_be_registered(server: TorchServeProcess, url: str) -> None:
    said = server.manage("POST", f"/models?url={url}")
    assert said.status in (400, 404)
    assert "root:" not in said.body.decode()


def test_a_download_ends_when_its_caller_leaves(server: TorchServeProcess) -> None:
    with silent_site() as (url, asked):
        caller = http.client.HTTPConnection("127.0.0.1", server.ports["management_address"])
        caller.request("POST", f"/models?url={url}")
        with asked() as line:
            caller.close()
            assert line.recv(1) == b""


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"junk", "multipart/form-data; boundary=b"),
        (b"--b\r\n\r\n" * (MAX_PARTS + 1) + b"--b--", "multipart/form-data; boundary=b"),
        (b"a&" * (MAX_PARTS + 1), "application/x-www-form-urlencoded"),
        (b"x", f"multipart/form-data; boundary={'b' * 5000}"),
    ],
)
def test_bodies_that_are_no_forms(
    server: TorchServeProcess, body: bytes, content_type: str
) -> None:
    said = server.predict("show", body, content_type=content_type)
    assert (said.status, said.document["type"]) == (400, "BadRequestException")


def test_a_body_over_the_limit_is_refused(server: TorchServeProcess) -> None:
    said = server.predict("show", b"x" * 1_000_001)
    words = "the body is over 1000000 bytes, the limit (max_request_size); send less"
    assert (said.status, said.document) == (413, error(413, "BadRequestException", words))
    assert server.predict("mine", b"x" * 999_999).status == 200


def test_numbers_that_are_none_have_their_defaults(server: TorchServeProcess) -> None:
    said = server.manage("GET", "/models?limit=x&next_page_token=-4")
    assert len(said.document["models"]) >= 4
    assert server.manage("GET", "/models?limit=1").document["nextPageToken"] == "1"
    scaled = server.manage("PUT", "/models/mine?min_worker=2&max_worker=1")
    assert scaled.document["message"] == "max_worker cannot be less than min_worker."
    assert server.manage("PUT", "/models/mine?min_worker=9999").status == 400


def test_metrics_are_on_their_port(server: TorchServeProcess) -> None:
    server.predict("mine", b"x")
    counted = {"model": "mine", "protocol": "torchserve", "code": "200"}
    assert server.metric("flambeau_requests_total", **counted) >= 1


def test_tokens_are_asked_for_by_default(tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    write_archive(tmp_path / "archives", name="echo")
    with running_torchserve(tmp_path, load_models="all") as server:
        tokens = server.tokens

        def ask(token: str) -> Said:
            return server.predict("echo", b"x", authorization=f"Bearer {token}")

        refused = ask("wrong")
        assert (refused.status, refused.document["type"]) == (400, "InvalidKeyException")
        assert server.call("GET", "/ping").status == 400
        assert server.call("GET", "/api-description").status == 200
        assert ask(tokens["inference"]).body == b"x"
        assert ask(tokens["management"]).status == 400
        assert server.manage("GET", "/models", tokens["inference"]).status == 400
        assert server.call("POST", "/invocations").status == 400
        assert server.manage("GET", "/models", tokens["management"]).status == 200
        off = server.manage("POST", "/models?url=echo.mar", tokens["management"])
        assert (off.status, off.document["type"]) == (405, "MethodNotAllowedException")
        assert server.manage("DELETE", "/models/echo", tokens["management"]).status == 405
        assert server.manage("GET", "/token?type=inference", tokens["management"]).status == 400
        assert server.manage("GET", "/token?type=inference", tokens["API"]).status == 200
        renewed = server.tokens
        assert renewed["inference"] != tokens["inference"]
        assert ask(renewed["inference"]).body == b"x"
        assert ask(tokens["inference"]).status == 400
        assert json.loads((tmp_path / "key_file.json").read_text())["API"]["key"] == tokens["API"]


@pytest.mark.long
def test_several_processes_serve_one_set_of_models(tmp_path: Path) -> None:
    """A call without a model is of the only one from the start, whatever is registered later."""
    (tmp_path / "archives").mkdir()
    write_archive(tmp_path / "archives", name="echo")
    options = ("--processes=2", "--disable-token-auth", "--enable-model-api")
    with running_torchserve(tmp_path, *options, load_models="echo.mar") as server:
        for _ in range(20):
            assert server.predict("echo", b"x").body == b"x"
        register = "/models?url=echo.mar&model_name=more&initial_workers=1"
        assert server.manage("POST", register).status == 200
        for _ in range(20):
            assert server.predict("more", b"x").body == b"x"
            assert len(server.manage("GET", "/models").document["models"]) == 2
            assert server.call("POST", "/invocations", b"y").body == b"y"
            assert server.call("POST", "/invocations", b"body=y", FORM).body == b"y"
        assert server.call("POST", "/models//invoke", b"y").body == b"y"
        assert "/predictions/echo" in server.call("OPTIONS", "/invocations").document["paths"]
        assert server.manage("DELETE", "/models/more").status == 200
        assert {server.predict("more", b"x").status for _ in range(20)} == {404}
        assert server.manage("DELETE", "/models/echo").status == 200
        assert server.manage("POST", "/models?url=echo.mar").status == 200
        nameless = error(400, "BadRequestException", "Parameter model_name is required.")
        assert server.call("POST", "/invocations", b"y").document == nameless


SLOW_START = """
    import time

    time.sleep(%s)

    def handle(data, context):
        return ["%s"] * len(data or ())
    """


@pytest.mark.long
def test_only_the_registered_archive_answers(tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    write_archive(tmp_path / "archives", SLOW_START % (3, "old"), name="d")
    write_archive(tmp_path / "archives", SLOW_START % (0, "new"), name="new")
    options = ("--processes=2", "--disable-token-auth", "--enable-model-api")
    with running_torchserve(tmp_path, *options) as server:
        first = "/models?url=d.mar&initial_workers=1&synchronous=false"
        assert server.manage("POST", first).status == 202
        assert server.manage("DELETE", "/models/d").status == 200
        assert server.predict("d").status == 404
        second = "/models?url=new.mar&model_name=d&initial_workers=1&synchronous=false"
        assert server.manage("POST", second).status == 202
        answers = set()
        while b"new" not in answers:
            said = server.predict("d")
            assert said.status in (200, 503)
            answers.add(said.body if said.status == 200 else b"none yet")
        assert answers <= {b"new", b"none yet"}


def test_management_that_anybody_could_reach_is_refused(tmp_path: Path) -> None:
    properties = {"management_address": "http://0.0.0.0:0", "enable_model_api": "true"}
    with (
        pytest.raises(AssertionError, match="every machine that reaches it could run code"),
        running_torchserve(tmp_path, "--disable-token-auth", **properties),
    ):
        pass
