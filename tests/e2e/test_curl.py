"""curl, unchanged: compression both ways, chunks, 100-continue, HEAD, reuse of a connection."""

import gzip
import json
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rest_calls import infer_path, tensor
from tests.fixtures.servers import ServerProcess

VALUES = [[0.5] * 1000]
BODY = json.dumps({"inputs": [tensor("in_FP32", "FP32", [1, 1000], VALUES)]}).encode()

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(server: ServerProcess, *arguments: str, path: str = infer_path("echo-fp32")) -> bytes:
    command = ["curl", "-sS", "--max-time", "60", *arguments, f"http://{server.http}{path}"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def values(answer: bytes) -> Any:
    (output,) = json.loads(answer)["outputs"]
    return output["data"]


@pytest.fixture
def body(tmp_path: Path) -> str:
    (tmp_path / "body").write_bytes(BODY)
    return f"@{tmp_path / 'body'}"


def test_compressed_answer(server: ServerProcess, body: str) -> None:
    headers = curl(server, "--compressed", "--data-binary", body, "-D", "-", "-o", "/dev/null")
    assert b"content-encoding: " in headers.lower()
    assert values(curl(server, "--compressed", "--data-binary", body)) == VALUES[0]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_request(server: ServerProcess, tmp_path: Path, encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    (tmp_path / "small").write_bytes(compress(BODY))
    given = ("--data-binary", f"@{tmp_path / 'small'}")
    assert values(curl(server, "-H", f"content-encoding: {encoding}", *given)) == VALUES[0]


@pytest.mark.parametrize(
    "header", ["transfer-encoding: chunked", "expect: 100-continue", "expect:"]
)
def test_upload(server: ServerProcess, body: str, header: str) -> None:
    assert values(curl(server, "-H", header, "--data-binary", body)) == VALUES[0]


def test_large_chunked_upload_is_told_to_continue(server: ServerProcess, tmp_path: Path) -> None:
    """curl sends `Expect: 100-continue` by itself before a body of over 1 MiB."""
    count = 400_000
    large = {"inputs": [tensor("in_FP32", "FP32", [1, count], [0.5] * count)]}
    (tmp_path / "large").write_text(json.dumps(large))
    given = ("-T", str(tmp_path / "large"), "-X", "POST", "-H", "transfer-encoding: chunked")
    told = curl(server, *given, "-o", str(tmp_path / "answer"), "-w", "%{http_code}")
    assert told == b"200"
    assert values((tmp_path / "answer").read_bytes()) == [0.5] * count


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2", "/v2/models/linear", "/openapi.json"])
def test_head(server: ServerProcess, path: str) -> None:
    told = curl(server, "--head", path=path).lower()
    assert told.startswith(b"http/1.1 200")
    assert b"content-length: 0" not in told
    length = len(curl(server, path=path))
    assert b"content-length: %d\r\n" % length in told


def test_head_of_an_inference(server: ServerProcess) -> None:
    told = curl(server, "--head").lower()
    assert told.startswith(b"http/1.1 405")
    assert b"allow: post" in told


def test_one_connection_for_many(server: ServerProcess, body: str) -> None:
    url = f"http://{server.http}{infer_path('echo-fp32')}"
    given = ("--data-binary", body, "-o", "/dev/null", "-w", "%{num_connects} %{http_code}\n")
    told = curl(server, *given, url, "-o", "/dev/null", url, "-o", "/dev/null")
    assert told.splitlines() == [b"1 200", b"0 200", b"0 200"]
