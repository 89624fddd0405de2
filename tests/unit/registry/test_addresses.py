"""Addresses that are no registry's, and models that it does not have: the message says so."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flambeau.registry.connection import RegistryConnection
from flambeau.registry.errors import RegistryError
from flambeau.registry.pull import Pull, wanted_version
from flambeau.registry.push import begin_upload
from flambeau.registry.url import is_registry, lacks_scheme
from tests.fixtures.http_listener import QuietHandler, http_listener

JSON = "application/json"
NO_GRANT = b'{"error": "model \'guided\' is not in the registry"}'
UNKNOWN = b'{"error": "the registry has no such model"}'
MODELS = json.dumps({"models": [{"name": "digits"}, {"name": "letters"}]}).encode()


@contextmanager
def answering(
    status: int, body: bytes, kind: str, of_list: bytes = b""
) -> Iterator[RegistryConnection]:
    """Runs a server with one answer to every call, and another to the list of models."""

    class Answer(QuietHandler):
        def do_GET(self) -> None:
            is_list = self.path.startswith("/v1/registry/models?")
            found = of_list if is_list and of_list else body
            self.send_response(200 if is_list and of_list else status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

    with http_listener(Answer) as url:
        connection = RegistryConnection(url, sleep=lambda _: None)
        try:
            yield connection
        finally:
            connection.close()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"# HELP flambeau_requests_total Requests.", "text/plain"),  # a port of metrics
        (400, b"", "text/plain"),  # a port of gRPC
        (404, b'{"detail": "Not Found"}', JSON),  # another server
    ],
)
def test_a_port_of_another_protocol_is_said_to_be_no_registry(
    status: int, body: bytes, kind: str
) -> None:
    with answering(status, body, kind) as connection:
        said = f"{connection.url} is no registry's REST port: .*REST, on port 8000"
        with pytest.raises(RegistryError, match=said):
            Pull(connection, "digits", 1)
        with pytest.raises(RegistryError, match=said):
            wanted_version(connection, "digits", "")


def test_a_failure_of_a_proxy_keeps_its_status() -> None:
    with answering(502, b"<html>", "text/html") as connection:
        with pytest.raises(RegistryError, match="answered with status 502") as failed:
            wanted_version(connection, "digits", "")
        assert failed.value.status == 502


@pytest.mark.parametrize("wanted", ["", "production"])
def test_a_model_that_is_not_there_is_named_with_the_nearest(wanted: str) -> None:
    with answering(404, UNKNOWN, JSON, MODELS) as connection:
        said = r"model 'digts': the registry has no such model \(did you mean 'digits'\?\)$"
        with pytest.raises(RegistryError, match=said):
            wanted_version(connection, "digts", wanted)
        with pytest.raises(RegistryError, match=r"model 'unlike': the registry has no such model$"):
            Pull(connection, "unlike", 1)


def test_a_key_without_a_grant_is_told_both_reasons() -> None:
    said = "'guided' is not in the registry, or this key has no grant on it; ask for push:guided"
    with answering(404, NO_GRANT, JSON) as connection:
        with pytest.raises(RegistryError, match=said) as refused:
            begin_upload(connection, {"model": "guided", "version": 2, "files": []})
        assert refused.value.status == 404


@pytest.mark.parametrize(
    ("url", "is_server", "is_short"),
    [
        ("http://127.0.0.1:8000", True, False),
        ("127.0.0.1:22010", False, True),
        ("localhost:22000/", False, True),
        ("[::1]:8000", False, True),
        ("models.example:8000", False, True),
        ("./localhost:8000", False, False),
        ("s3://bucket/prefix:8000", False, False),
        ("var/model_store", False, False),
        ("C:8000000", False, False),
    ],
)
def test_urls_of_servers_are_told_from_those_of_stores(
    url: str, is_server: bool, is_short: bool
) -> None:
    assert (is_registry(url), lacks_scheme(url)) == (is_server, is_short)
