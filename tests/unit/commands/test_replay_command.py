"""`flambeau replay` between two small servers: what is sent, told and returned."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flambeau.cli import app
from tests.fixtures.http_listener import QuietHandler, http_listener

Answer = Callable[[str, str, bytes], tuple[int, bytes]]
"""Answers method, path and body with a status and a body."""


def echo(method: str, path: str, body: bytes) -> tuple[int, bytes]:
    return 200, json.dumps({"path": path, "score": 0.5, "body": body.decode()}).encode()


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Serves until the block ends. Yields its URL, and method, path and credential of requests."""
    seen: list[tuple[str, str, str]] = []

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            seen.append((self.command, self.path, self.headers.get("authorization", "")))
            status, told = answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(told)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

    with http_listener(Handler) as url:
        yield url, seen


def capture(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "capture.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


REQUESTS = [{"path": f"/p/{n}", "body": str(n)} for n in range(5)]


class Tried:
    """Two servers and a folder for reports."""

    def __init__(self, stack: ExitStack, folder: Path, old: Answer, new: Answer) -> None:
        self.old, self.sent_old = stack.enter_context(server(old))
        self.new, self.sent_new = stack.enter_context(server(new))
        self.reports = folder / "reports"

    def replay(self, requests: Path, *options: str, old: str | None = None) -> Result:
        given = [f"--from={self.old if old is None else old}"] if old != "" else []
        command = [f"--to={self.new}", f"--requests={requests}", f"--report-dir={self.reports}"]
        return CliRunner().invoke(app, ["replay", *given, *command, *options])

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.reports / "report.json").read_text())
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def test_equal_answers_give_0(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    done = tried.replay(capture(tmp_path, *REQUESTS))
    assert done.exit_code == 0, done.output
    assert tried.sent_old == tried.sent_new == [("POST", f"/p/{n}", "") for n in range(5)]
    assert tried.report()["outcomes"] == {"equal": 5}
    assert tried.report()["finished"] is True
    assert set(tried.report()["latencies_ms"]) == {"old", "new"}
    assert "5 of 5 compared" in done.stdout
    page = (tried.reports / "report.md").read_text()
    assert all(line in page for line in done.stdout.splitlines()[:-1])


def test_differences_give_1_and_are_told_by_request(stack: ExitStack, tmp_path: Path) -> None:
    def new(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/p/1":
            return 404, b"{}"
        score = {"/p/2": 0.5001, "/p/3": 0.6}.get(path, 0.5)
        return 200, json.dumps({"path": path, "score": score, "body": body.decode()}).encode()

    tried = Tried(stack, tmp_path, echo, new)
    done = tried.replay(capture(tmp_path, *REQUESTS), "--json")
    assert done.exit_code == 1
    facts = json.loads(done.stdout)
    assert facts["outcomes"] == {"equal": 2, "equal by the rules": 1, "different": 2}
    assert facts["requests_by_kind_of_difference"] == {"status": 1, "body": 2}
    first, second = facts["differences"]
    assert first["name"] == "line 2: POST /p/1"
    assert first["differences"][0] == {
        "kind": "status",
        "place": "status",
        "old": "200",
        "new": "404",
    }
    assert second["differences"] == [{"kind": "body", "place": "score", "old": "0.5", "new": "0.6"}]
    assert tried.replay(tmp_path / "capture.jsonl", "--rtol=0.3").exit_code == 1
    assert tried.replay(tmp_path / "capture.jsonl", "--rtol=0").exit_code == 1
    assert tried.report()["outcomes"]["different"] == 3


def test_methods_that_change_servers_are_left_out(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    path = capture(
        tmp_path, *({"method": m, "path": "/"} for m in ("GET", "DELETE", "PUT", "HEAD"))
    )
    assert tried.replay(path).exit_code == 2
    assert [method for method, _, _ in tried.sent_old] == ["GET", "HEAD"]
    assert "(2 to send, 2 left out)" in tried.report()["requests"]
    assert tried.replay(path, "--methods=PUT").exit_code == 2
    assert [method for method, _, _ in tried.sent_new] == ["GET", "HEAD", "PUT"]
    nothing = tried.replay(path, "--methods=PATCH")
    assert nothing.exit_code == 2
    assert "their methods are DELETE, GET, HEAD, PUT" in nothing.stderr


def test_bad_lines_are_told_before_anything_is_sent(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    path = capture(tmp_path, *({"path": f"p{n}"} for n in range(7)), {"path": "/good"})
    refused = tried.replay(path)
    assert refused.exit_code == 2
    assert "error: line 1: 'path' is 'p0'" in refused.stderr
    assert "line 5: " in refused.stderr
    assert "and 2 more; correct" in refused.stderr
    assert tried.sent_old == tried.sent_new == []
    assert tried.replay(path, "--skip-bad").exit_code == 2
    assert "(1 to send, 7 left out)" in tried.report()["requests"]


def test_recorded_answers_stand_for_the_old_server(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    told = {"status": 200, "ms": 7, "headers": {"content-type": "application/json"}}
    same = {**told, "body": echo("", "/a", b"")[1].decode()}
    path = capture(tmp_path, {"path": "/a", "answer": same}, {"path": "/a"})
    done = tried.replay(path, old="")
    assert done.exit_code == 2, "one of both has no recorded answer"
    assert tried.report()["outcomes"] == {"equal": 1, "not compared": 1}
    assert "capture with --answers" in done.stdout
    assert tried.sent_old == []
    path = capture(tmp_path, {"path": "/a", "answer": same})
    assert tried.replay(path, old="").exit_code == 0
    assert tried.report()["latencies_ms"]["old"]["max"] == 7


def test_tokens_are_those_of_each_server(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    (tmp_path / "old").write_text("one\n")
    (tmp_path / "new").write_text("two\n")
    path = capture(tmp_path, {"path": "/a", "headers": {"authorization": "Bearer zero"}})
    options = [f"--from-token-file={tmp_path}/old", f"--to-token-file={tmp_path}/new"]
    assert tried.replay(path, *options).exit_code == 0
    assert [seen[2] for seen in tried.sent_old + tried.sent_new] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("gone", ["old", "new"])
def test_a_server_that_is_not_there_gives_2(stack: ExitStack, tmp_path: Path, gone: str) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    with server(echo) as (url, _):
        pass
    setattr(tried, gone, url)
    done = tried.replay(capture(tmp_path, *REQUESTS))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: no connection to {url}")
    assert tried.sent_old == tried.sent_new == []


def test_wrong_options_give_2(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    path = capture(tmp_path, *REQUESTS)
    for wrong, told in (
        (["--ignore=$.a"], "is no path"),
        (["--resume"], "leave out --resume"),
        (["--from=old:8080"], "is no URL"),
        (["--concurrency=0"], "concurrency"),
    ):
        done = tried.replay(path, *wrong, old="" if "--from" in wrong[0] else None)
        assert done.exit_code == 2, wrong
        assert told in done.stderr


def test_answers_in_flight_are_as_many_as_asked(stack: ExitStack, tmp_path: Path) -> None:
    """Each answer of the new server waits until three requests are there."""
    all_there = threading.Barrier(3)

    def together(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        all_there.wait(30)
        return echo(method, path, body)

    tried = Tried(stack, tmp_path, echo, together)
    done = tried.replay(capture(tmp_path, *REQUESTS, REQUESTS[0]), "--concurrency=3")
    assert done.exit_code == 0, done.output


def test_the_rate_is_kept(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    started = time.monotonic()
    assert tried.replay(capture(tmp_path, *REQUESTS), "--rate=20").exit_code == 0
    assert time.monotonic() - started >= 4 / 20


def test_predictions_by_put_are_sent(stack: ExitStack, tmp_path: Path) -> None:
    tried = Tried(stack, tmp_path, echo, echo)
    paths = (
        "/predictions/m?a=1", "/predictions/m/2.0", "/explanations/m", "/v1/models/m:predict",
        "/v2/models/m/infer", "/v2/models/m/versions/1/infer",
    )  # fmt: skip
    path = capture(tmp_path, *({"method": "PUT", "path": one} for one in paths))
    assert tried.replay(path).exit_code == 0
    assert [path for _, path, _ in tried.sent_new] == list(paths)
    others = ("/models/m?min_worker=2", "/models/m/1.0/set-default", "/v2/models/m/infer/x")
    path = capture(tmp_path, *({"method": "PUT", "path": one} for one in others))
    assert tried.replay(path).exit_code == 2
    assert len(tried.sent_new) == len(paths)


@pytest.mark.parametrize(("statuses", "code"), [((400, 400), 2), ((400, 404), 0), ((200, 200), 0)])
def test_refusals_alone_prove_nothing(
    stack: ExitStack, tmp_path: Path, statuses: tuple[int, int], code: int
) -> None:
    def both(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        return statuses[path == "/p/1"], b"{}"

    tried = Tried(stack, tmp_path, both, both)
    done = tried.replay(capture(tmp_path, *REQUESTS[:2]))
    assert done.exit_code == code
    found = tried.report()["requests_by_statuses"]
    assert found == ({f"{s}, {s}": 1 for s in statuses} if len({*statuses}) > 1 else {
        f"{statuses[0]}, {statuses[0]}": 2
    })  # fmt: skip
    page = (tried.reports / "report.md").read_text()
    assert ("every answer of both servers has status 400" in page) == (code == 2)
