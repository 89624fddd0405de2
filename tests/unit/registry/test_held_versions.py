"""What servers hold, as asked over HTTP: of whole answers alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from flambeau.registry.connection import RegistryConnection
from flambeau.registry.errors import RegistryError
from flambeau.registry.held_versions import held_versions

INDEX = b"""[
  {"name": "digits", "version": "2", "state": "READY"},
  {"name": "letters", "state": "UNAVAILABLE"},
  {"name": "digits", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
]"""


@contextmanager
def answering(body: bytes, index: str | None = "whole", status: int = 200) -> Iterator[str]:
    """Runs a server that gives one answer to every call; yields its URL."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            found = self.path == "/v2/repository/index"
            self.send_response(status if found else 404)
            if index is not None:
                self.send_header("Flambeau-Index", index)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def asked(*urls: str) -> dict[tuple[str, int], list[str]]:
    opened = [RegistryConnection(url, sleep=lambda _: None) for url in urls]
    try:
        return held_versions(opened)
    finally:
        for connection in opened:
            connection.close()


def test_every_version_in_an_index_is_held_whatever_its_state() -> None:
    with answering(INDEX) as one, answering(b'[{"name": "digits", "version": "2"}]') as other:
        found = asked(one, other)
    assert found == {("digits", 2): [one, other], ("digits", 1): [one]}


@pytest.mark.parametrize("index", [None, "partial"])
def test_an_index_that_may_lack_versions_is_refused(index: str | None) -> None:
    with answering(INDEX, index) as url, pytest.raises(RegistryError, match="does not tell all"):
        asked(url)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{}", b"null", b"7", b'"index"', b"[7]", b"[[]]", b'[{"version": "1"}]',
        b'[{"name": "digits", "version": 1}]', b'[{"name": "digits", "version": "one"}]',
        b'[{"name": 7, "version": "1"}]', b'[{"name": "digits", "version": "%s"}]' % (b"1" * 5000),
        b"[" * 200_000,
    ],
)  # fmt: skip
def test_an_answer_that_is_no_index_is_refused(body: bytes) -> None:
    words = "is no registry|something else than an index"
    with answering(body) as url, pytest.raises(RegistryError, match=words):
        asked(url)


def test_a_server_that_is_away_or_refuses_is_an_error() -> None:
    with answering(INDEX) as url:
        pass
    with pytest.raises(RegistryError, match=f"no answer from {url}"):
        asked(url)
    with answering(b'{"error": "give a key"}', status=401) as url:
        with pytest.raises(RegistryError, match="give a key") as refused:
            asked(url)
        assert refused.value.status == 401
