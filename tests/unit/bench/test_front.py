"""Figures of streams: their targets, and the client of frames before a server that echoes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader

import pytest

from bench.front.__main__ import verdicts
from bench.front.frames import DATA, END_STREAM, HEADERS, FrameClient, frame
from bench.front.streams import StreamFigures
from bench.peers.peer import PeerError


@pytest.mark.parametrize(("ratio", "parts", "reached"), [(1.05, 60_000.0, 3), (1.2, 40_000.0, 1)])
def test_verdicts(ratio: float, parts: float, reached: int) -> None:
    figures = StreamFigures(
        unary_us=30.0, streamed_us=31.0, ratio=ratio, parts_per_cpu_s=parts,
        peer_parts_per_cpu_s=10_000.0,
    )  # fmt: skip
    assert sum(verdict.reached for verdict in verdicts(figures)) == reached


def test_a_peer_that_does_not_run_reaches_nothing() -> None:
    figures = StreamFigures(
        unary_us=30.0, streamed_us=31.0, ratio=1.0, parts_per_cpu_s=60_000.0,
        peer_parts_per_cpu_s=float("nan"),
    )  # fmt: skip
    assert [verdict.reached for verdict in verdicts(figures)] == [True, True, False]


class Server:
    """Answers each frame of DATA as its kind of call is answered, and counts them."""

    def __init__(self, connection: socket.socket, *, is_stream: bool, answers: int = 1) -> None:
        self.messages = 0
        self._socket, self._is_stream, self._answers = connection, is_stream, answers
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with self._socket.makefile("rb") as reader:
            self._answer_all(reader)

    def _answer_all(self, reader: BufferedReader) -> None:
        assert reader.read(24).startswith(b"PRI")
        while head := reader.read(9):
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream, payload = int.from_bytes(head[5:], "big"), reader.read(size)
            if kind != DATA:
                continue
            self.messages += bool(payload)
            answer = frame(DATA, 0, stream, b"12345") * (self._answers if payload else 0)
            if not self._is_stream or flags & END_STREAM:
                answer += frame(HEADERS, END_STREAM, stream)
            self._socket.sendall(answer)


@contextmanager
def client(*, is_stream: bool, answers: int = 1) -> Iterator[tuple[FrameClient, Server]]:
    ours, theirs = socket.socketpair()
    with theirs:
        server = Server(theirs, is_stream=is_stream, answers=answers)
        with ours:
            yield FrameClient(ours), server
        server.thread.join(10)


@pytest.mark.parametrize("answers", [1, 3])
def test_frames_of_a_stream(answers: int) -> None:
    with client(is_stream=True, answers=answers) as (one, server):
        one.streamed(b"abc", 50, 8, answers)
    assert server.messages == 50


def test_frames_of_calls() -> None:
    with client(is_stream=False) as (one, server):
        one.unary(b"abc", 50, 8)
    assert server.messages == 50


def test_connection_that_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        one = FrameClient(ours)
        theirs.close()
        with pytest.raises((PeerError, OSError)):
            one.unary(b"abc", 1, 1)
