"""A server of its own for every test, and a client that talks to it."""

from collections.abc import Iterator

import pytest

from flambeau.client import Client
from tests.client.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    with Client(server.address, timeout_s=10) as client:
        yield client
