"""A peer that does not answer is named, and the others are measured."""

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.peers import answers
from bench.peers.answers import ask_once, check
from bench.peers.peer import Ask, Form, Launch, Peer, PeerError
from bench.peers.served_model import ServedModel
from flambeau.protocol.tensors import Array

MODEL = cast(
    ServedModel,
    SimpleNamespace(rows=np.zeros((1, 2), np.float32), expected=np.zeros((1, 2), np.float32)),
)


class Anything(Peer):
    name, asked, forms = "anything", "", {Form.JSON: "a body"}

    def install(self) -> str:
        return ""

    def start(self, model: ServedModel) -> Launch:
        raise PeerError("is started elsewhere")

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        return Ask(path="/", body=b"{}", read=cast(Any, None))


@pytest.mark.parametrize("says", ["nothing", "the end"])
def test_a_peer_that_does_not_answer_is_a_peer_error(
    says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if says == "the end":
            threading.Thread(target=_close_each, args=(listening,), daemon=True).start()
        host, port = listening.getsockname()
        launch = Launch(argv=(), folder=Path(), http=f"{host}:{port}")
        assert ask_once(Anything(), launch, MODEL).startswith("REST JSON: ")
        with pytest.raises(PeerError, match="REST JSON: "):
            check(Anything(), launch, MODEL)


def _close_each(listening: socket.socket) -> None:
    for _ in range(2):
        connection, _ = listening.accept()
        connection.recv(65_536)
        connection.close()
