"""Figures at the limits: their targets, and the client of many connections."""

import resource
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.figures.verdicts import Verdict
from bench.limits.__main__ import verdicts
from bench.limits.connections import (
    CONNECTIONS,
    SPARE_FILES,
    ConnectionFigures,
    answer,
    connections_that_fit,
)
from bench.limits.tails import TailFigures, beside_pauses
from bench.limits.tensors import TensorFigures
from bench.loads.open_loop import Shots
from bench.peers.peer import PeerError

REQUEST = b"GET / HTTP/1.1\r\n\r\n"


def all_verdicts(*, cpu_share: float = 0.04, p999_ms: float = 2.0) -> list[Verdict]:
    connections = ConnectionFigures(
        connections=10_000, bytes_each=9_000, server_cpu_share=cpu_share, client_cpu_share=0.02,
        p99_ms=1.0,
    )  # fmt: skip
    tails = [
        TailFigures(
            model=model, form="REST JSON", capacity_per_second=5_000, batch_rows=8, batch_ms=2.0,
            p999_ms=p999_ms, beside_pauses_share=0.015,
            yardstick_p999_ms=1.8, failures=1,
        )
        for model in ("tiny-mlp", "cnn")
    ]  # fmt: skip
    tensors = TensorFigures(
        cpu_ms={"1 MB, gRPC": 0.4, "64 MB, gRPC": 30.0},
        gigabytes_per_second={"1 MB, gRPC": 1.0, "64 MB, gRPC": 2.1},
        longest_ping_ms=1.5, longest_ping_alone_ms=0.5, failures=2,
    )  # fmt: skip
    return verdicts(connections, tails, tensors)


def test_each_figure_stands_beside_its_target() -> None:
    found = {verdict.what: (*verdict.figures, verdict.reached) for verdict in all_verdicts()}
    assert found == {
        "10,000 open connections, 100 requests/s in all: CPU of a core (client: 2 %)": (
            "4 %", "5 %", True,
        ),
        "10,000 open connections: memory of each": ("9 KB", "10 KB", True),
        "tiny-mlp, REST JSON, half of 5,000 requests/s: p99.9 (without 1.5 % beside pauses of the "
        "client; yardstick: 1.8 ms)": ("2 ms", "3 ms", True),
        "cnn, REST JSON, half of 5,000 requests/s: p99.9 ÷ a batch of 8 rows, 2 ms": (
            "1", "1.3", True,
        ),
        "tensor of 1 MB, gRPC: server CPU": ("0.4 ms", "0.5 ms", True),
        "tensor of 64 MB, gRPC, 1 client": ("2.1 GB/s", "2 GB/s", True),
        "JSON of 1 MB, 1 client: longest ping of a neighbour (without it: 0.5 ms)": (
            "1.5 ms", "2 ms", True,
        ),
        "failed requests": ("4", "0", False),
    }  # fmt: skip


def test_a_missed_target_is_told() -> None:
    missed = [v.what for v in all_verdicts(cpu_share=0.06, p999_ms=3.1) if not v.reached]
    assert len(missed) == 4  # CPU, both tails, failures


def exchange(*pieces: bytes) -> bytes:
    """Returns what `answer` reads from a server that sends these pieces and closes."""
    ours, theirs = socket.socketpair()
    with ours, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(answer, ours, REQUEST)
        with theirs:
            assert theirs.recv(100) == REQUEST
            for piece in pieces:
                theirs.sendall(piece)
        return reading.result()


def test_an_answer_may_come_in_pieces() -> None:
    assert exchange(b"HTTP/1.1 200 OK\r\nContent-", b"Length: 4\r\n\r\nab", b"cd") == b"abcd"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"],
        [],
    ],
)
def test_a_refusal_or_a_lost_connection_ends_the_benchmark(pieces: list[bytes]) -> None:
    with pytest.raises(PeerError, match="no answer over an open connection"):
        exchange(*pieces)


@pytest.mark.parametrize(
    ("hard", "fitting"),
    [(CONNECTIONS + SPARE_FILES, CONNECTIONS), (4_096, 4_096 - SPARE_FILES)],
)
def test_the_hard_limit_of_open_files_is_used(
    hard: int, fitting: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1_024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: given.append(limits))
    assert connections_that_fit() == fitting
    assert given == [(hard, hard)]
    assert ("the hard limit of open files" in capsys.readouterr().out) is (hard < CONNECTIONS)


def test_requests_beside_a_pause_of_the_client_are_known() -> None:
    """The third is sent 10 ms late: the second waits through the pause, the first has ended."""
    shots = Shots()
    for sent_at, took_s in ((1.0, 0.003), (1.002, 0.011), (1.015, 0.002), (1.02, 0.001)):
        shots.sent_at.append(sent_at)
        shots.took_s.append(took_s)
        shots.lags_s.append(0.010 if sent_at == 1.015 else 0.0)
    assert beside_pauses(shots).tolist() == [False, True, True, False]


def test_without_pauses_no_request_is_left_out() -> None:
    shots = Shots()
    for number in range(3):
        shots.sent_at.append(number)
        shots.took_s.append(0.5)
        shots.lags_s.append(0.001)
    assert not beside_pauses(shots).any()
