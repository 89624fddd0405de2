"""Calls whose answers are lost: those that would act again are made once."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from flambeau.commands.models import models_app
from flambeau.registry.connection import RegistryConnection
from flambeau.registry.errors import RegistryAwayError, RegistryBusyError, RegistryUnknownError
from tests.fixtures.http_listener import QuietHandler, http_listener

LOST = "it is not known whether the call took effect at http://.*; look at the history"


@contextmanager
def losing(status: int, calls: list[str]) -> Iterator[str]:
    """Runs a registry that acts at each call; its answer has a status, or is lost for 0."""

    class Answer(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            calls.append(self.path)
            if not status:
                self.close_connection = True
                return
            body = json.dumps({"error": "no"}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_listener(Answer) as url:
        yield url


@pytest.mark.parametrize("status", [0, 502, 504])
def test_a_call_that_is_made_once_is_not_repeated(status: int) -> None:
    calls: list[str] = []
    with losing(status, calls) as url:
        connection = RegistryConnection(url, sleep=lambda _: None)
        with pytest.raises(RegistryUnknownError, match=LOST):
            connection.call("POST", "models/m", {}, is_made_once=True)
    assert calls == ["/v1/registry/models/m"]


def test_other_calls_are_repeated() -> None:
    calls: list[str] = []
    with losing(0, calls) as url:
        connection = RegistryConnection(url, sleep=lambda _: None, tries=3)
        with pytest.raises(RegistryAwayError):
            connection.call("POST", "models/m", {})
    assert len(calls) == 3


def test_a_registry_that_refuses_a_call_that_is_made_once_is_not_asked_again() -> None:
    calls: list[str] = []
    with losing(503, calls) as url:
        connection = RegistryConnection(url, sleep=lambda _: None)
        with pytest.raises(RegistryBusyError, match=r"^no$"):
            connection.call("POST", "models/m", {}, is_made_once=True)
    assert len(calls) == 1


def test_a_call_that_is_made_once_waits_for_a_connection() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        waits: list[float] = []
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        connection = RegistryConnection(url, sleep=waits.append, tries=3)
        with pytest.raises(RegistryAwayError, match="no answer from"):
            connection.call("POST", "models/m", {}, is_made_once=True)
    assert waits == [0.5, 1.0]


def test_a_rollback_whose_answer_is_lost_is_made_once() -> None:
    calls: list[str] = []
    with losing(0, calls) as url:
        result = CliRunner().invoke(models_app, ["rollback", "digits", "--at", url])
    assert result.exit_code != 0
    assert re.search("not known whether", " ".join(result.output.split()))
    assert calls == ["/v1/registry/models/digits/aliases/production/rollback"]
