"""Requests of captures and folders, and what is said of wrong ones."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from flambeau.replay.errors import RequestFileError
from flambeau.replay.records import RecordedRequest
from flambeau.replay.request_document import read_request
from flambeau.replay.request_source import RequestSource


def read(**fields: Any) -> RecordedRequest:
    return read_request(json.dumps({"path": "/predictions/m", **fields}).encode(), 7)


def test_the_least_is_a_path() -> None:
    found = read()
    assert (found.method, found.path, found.headers, found.body) == (
        "POST",
        "/predictions/m",
        (),
        b"",
    )
    assert found.name == "line 7: POST /predictions/m"
    assert found.answer is None


def test_every_form_of_a_body() -> None:
    assert read(body="héllo").body == "héllo".encode()
    assert read(body_base64=base64.b64encode(b"\xff\0").decode()).body == b"\xff\0"
    with_json = read(json={"instances": [1.5, None]})
    assert with_json.body == b'{"instances":[1.5,null]}'
    assert with_json.headers == (("content-type", "application/json"),)
    own = read(json=[1], headers={"Content-Type": "application/x", "X-A": ["1", "2"]})
    assert own.headers == (("content-type", "application/x"), ("x-a", "1"), ("x-a", "2"))


def test_a_recorded_answer_comes_along() -> None:
    answer = read(answer={"status": 201, "ms": 5, "headers": {"A": "b"}, "body": "x"}).answer
    assert answer is not None
    assert (answer.status, answer.headers, answer.body) == (201, (("a", "b"),), b"x")
    assert answer.seconds == 0.005


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"path": "predictions"}, "'path' is 'predictions': write a path"),
        ({"path": "/a b"}, "'path'"),
        ({"path": "/a\r\nx: y"}, "'path'"),
        ({"path": "http://other/"}, "'path'"),
        ({"method": "GET / HTTP/1.1\r\n"}, "'method'"),
        ({"headers": {"a b": "c"}}, "name of a header"),
        ({"headers": {"a": "b\r\nc: d"}}, "in one line"),
        ({"headers": {"a": "\u0100"}}, "Latin-1"),
        ({"headers": {f"a{i}": "b" for i in range(201)}}, "at most 200"),
        ({"body_base64": "!"}, "no base64"),
        ({"body": "a", "json": 1}, "'body' and 'json' are both given"),
        ({"body": "a", "body_base64": ""}, "'body' and 'body_base64' are both given"),
        ({"body": "\ud800"}, "body"),
        ({"body_file": "x"}, "for a folder of requests"),
        ({"metod": "GET"}, "unknown key 'metod' (did you mean 'method'?)"),
        ({"answer": {"status": 99}}, "'answer.status'"),
    ],
)
def test_a_wrong_request_is_told_by_its_key(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestFileError) as error:
        read(**fields)
    assert told in str(error.value)


def test_bad_lines_of_a_capture_are_named_by_their_numbers(tmp_path: Path) -> None:
    capture = tmp_path / "capture.jsonl"
    capture.write_bytes(
        b'{"path": "/1"}\n'
        b'{"path": "2"}\n'
        b"\n"
        b'{"method": "GET", "path": "/4"}\n'
        b"\xff\xfe\n"
        b'{"path": "/torn'
    )
    source = RequestSource(capture)
    checked = source.check()
    assert dict(checked.methods) == {"POST": 1, "GET": 1}
    assert [fault.partition(":")[0] for fault in checked.faults] == ["line 2", "line 5", "line 6"]
    assert checked.fault_count == 3
    assert [(r.number, r.path) for r in source.requests()] == [(1, "/1"), (4, "/4")]


def test_a_folder_is_read_in_order_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "kitten.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "b.json").write_text('{"path": "/b", "body_file": "kitten.jpg"}')
    (tmp_path / "a.json").write_text('{"path": "/a", "method": "GET"}')
    source = RequestSource(tmp_path)
    found = list(source.requests())
    assert [(r.number, r.name, r.body) for r in found] == [(1, "a", b""), (2, "b", b"\xff\xd8")]
    before = source.check().digest
    (tmp_path / "kitten.jpg").write_bytes(b"\xff\xd9")
    assert source.check().digest != before, "a replay of other bodies must not be continued"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link", "missing", "folder", "a\0b"])
def test_a_body_is_a_file_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "requests"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "a.json").write_text(json.dumps({"path": "/a", "body_file": name}))
    checked = RequestSource(folder).check()
    assert not checked.count
    assert checked.faults[0].startswith("a.json: 'body_file'")


def test_no_requests_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestFileError, match="is not there"):
        RequestSource(tmp_path / "missing")
    with pytest.raises(RequestFileError, match="has no requests"):
        RequestSource(tmp_path).check()
