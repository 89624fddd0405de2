"""A warm-up too short for a slow model is no error; a load without responses is."""

import numpy as np
import pytest

from bench.loads import closed_loop as load
from bench.loads.closed_loop import closed_loop, warm_up
from bench.peers.load import Load, NothingAnsweredError
from bench.peers.peer import Ask, Form
from flambeau.server_process import ServerProcess

SERVER = ServerProcess(pid=1, http="here:1", grpc="here:2", metrics="here:3")
ASK = Ask(path="/", body=b"", read=lambda _, __: np.zeros((1, 1), np.float32))


def test_nothing_need_be_answered_while_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(*_: object) -> Load:
        raise NothingAnsweredError("too slow")

    monkeypatch.setattr(load, "generator_of", lambda _: "wrk")
    monkeypatch.setattr("bench.peers.load.load_rest", unanswered)
    warm_up(SERVER, Form.BINARY, ASK, 1, 0)
    with pytest.raises(NothingAnsweredError):
        closed_loop(SERVER, Form.BINARY, ASK, 1, 1, 0)
