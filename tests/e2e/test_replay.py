"""A migration as users do it: capture in front of a server, replay to another, compare.

The servers are flambeau's and one that others wrote (Werkzeug's).
"""

import json
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from tests.fixtures import onnx_models
from tests.fixtures.capture_command import TIMEOUT_S, Command, capturing
from tests.fixtures.http_listener import QuietHandler, http_listener
from tests.fixtures.servers import running_server


def replay(*options: str) -> tuple[int, str]:
    command = Command("replay", *options)
    code = command.wait()
    return code, "\n".join([*command.output.all(), *command.errors.all()])


def infer(url: str, model: str, values: list[float], *, binary: bool = False) -> None:
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    document: dict[str, Any] = {"id": "one", "inputs": [tensor]}
    headers: dict[str, str] = {}
    raw = b""
    if binary:
        raw = np.array(values, np.float32).tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
        document["parameters"] = {"binary_data_output": True}
        text = json.dumps(document).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
    else:
        tensor["data"] = values
        text = json.dumps(document).encode()
    asked = urllib.request.Request(f"{url}/v2/models/{model}/infer", text + raw, headers)
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as reply:
        assert reply.status == 200


def test_flambeau_beside_flambeau(tmp_path: Path) -> None:
    """Both forms of tensors; a model that is nearly the same, and one that is not."""
    stores = tmp_path / "old", tmp_path / "new"
    for store, near, other in zip(stores, (1.0, 1.0001), (1.0, 2.0), strict=True):
        onnx_models.publish(str(store), "near", onnx_models.linear(near))
        onnx_models.publish(str(store), "other", onnx_models.linear(other))
    path = tmp_path / "capture.jsonl"
    with running_server(stores[0]) as old, running_server(stores[1]) as new:
        with capturing(f"http://{old.http}", path) as proxy:
            for model in ("near", "other"):
                infer(proxy.url, model, [1, 2, 3, 4.5])
                infer(proxy.url, model, [1, 2, 3, 4.5], binary=True)
            urllib.request.urlopen(f"{proxy.url}/v2/health/ready", timeout=TIMEOUT_S).close()
        given = [f"--from=http://{old.http}", f"--requests={path}", f"--report-dir={tmp_path}/r"]
        code, told = replay(*given, f"--to=http://{old.http}")
        assert code == 0, told
        code, told = replay(*given, f"--to=http://{new.http}")
        assert code == 1, told
    facts = json.loads((tmp_path / "r" / "report.json").read_text())
    assert facts["outcomes"] == {"equal": 1, "equal by the rules": 2, "different": 2}
    names = [result["name"] for result in facts["differences"]]
    assert names == ["line 3: POST /v2/models/other/infer", "line 4: POST /v2/models/other/infer"]
    places = [result["differences"][0]["place"] for result in facts["differences"]]
    assert places == ["outputs[0].data[0]", "output y[0]"]
    assert facts["largest_difference"] == 4.5


@contextmanager
def werkzeug(shift: float) -> Iterator[str]:
    @Request.application
    def answer(request: Request) -> Response:
        if request.path == "/stream":

            def pieces() -> Iterable[bytes]:
                for n in range(3):
                    yield f"data: {n + 0.5 + shift}\n\n".encode()

            return Response(pieces(), mimetype="text/event-stream")
        files = {name: len(file.read()) for name, file in request.files.items()}
        return Response(json.dumps({"files": files, "form": request.form.to_dict()}))

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_others_wrote(tmp_path: Path) -> None:
    """Streamed answers, multipart forms; then its recorded answers without it."""
    path = tmp_path / "capture.jsonl"
    form = (
        b"--b\r\ncontent-disposition: form-data; name=data; filename=x\r\n\r\n\xff\0\r\n"
        b"--b\r\ncontent-disposition: form-data; name=k\r\n\r\n2\r\n--b--\r\n"
    )
    with werkzeug(0) as old, capturing(old, path, "--answers") as proxy:
        kind = {"content-type": "multipart/form-data; boundary=b"}
        asked = urllib.request.Request(f"{proxy.url}/predictions/m", form, kind)
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as reply:
            assert json.load(reply) == {"files": {"data": 2}, "form": {"k": "2"}}
        with urllib.request.urlopen(f"{proxy.url}/stream", timeout=TIMEOUT_S) as reply:
            assert reply.read() == b"data: 0.5\n\ndata: 1.5\n\ndata: 2.5\n\n"
    given = [f"--requests={path}", f"--report-dir={tmp_path}/r"]
    for shift, expected in ((0.0, 0), (0.0001, 0), (0.1, 1)):
        with werkzeug(shift) as new:
            code, told = replay(*given, f"--to={new}")
        assert code == expected, told


def test_an_interrupted_replay_tells_what_it_has_and_goes_on(tmp_path: Path) -> None:
    waits, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            if self.path == "/4" and not go_on.is_set():
                waits.set()
                go_on.wait(TIMEOUT_S)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

    path = tmp_path / "capture.jsonl"
    lines = [json.dumps({"method": "GET", "path": f"/{n}"}) for n in range(1, 9)]
    path.write_text("\n".join(lines))
    with http_listener(Handler) as url:
        given = [f"--from={url}", f"--to={url}", f"--requests={path}", f"--report-dir={tmp_path}/r"]
        command = Command("replay", *given)
        assert waits.wait(TIMEOUT_S)
        code = command.stop()
        go_on.set()
        told = "\n".join(command.output.all())
        assert code == 2, told
        assert "interrupted, 3 of 8 compared" in told
        code, told = replay(*given)
        assert code == 2
        assert "--resume" in told
        code, told = replay(*given, "--resume")
        assert code == 0, told
    assert "finished, 8 of 8 compared" in told
    assert sorted(seen) == sorted([f"/{n}" for n in range(1, 9) for _ in range(2)] + ["/4"])
