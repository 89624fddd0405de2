"""Large requests over both protocols before servers that echo; figures beside their targets."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.front.frames import DATA, END_STREAM, HEADERS, SETTINGS, WINDOW_UPDATE, frame
from bench.front.large_calls import GrpcCaller, RestCaller
from bench.front.lifecycle import LifecycleFigures, growth_percent
from bench.front.sequences import SequenceFigures, verdicts
from bench.front.tensors import Moved, TensorFigures
from bench.peers.peer import PeerError

CONTENT = bytes(range(256)) * 2000
FRAME_BYTES, WINDOW = 20_000, 70_000


@contextmanager
def served(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)
    with theirs, ours:
        thread = threading.Thread(target=serve, args=(theirs,))
        thread.start()
        yield ours
        ours.shutdown(socket.SHUT_WR)
        thread.join(10)
        assert not thread.is_alive()


class EchoingServer:
    """Keeps a client to its windows and frames, and gives each message back in odd pieces."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def serve(self, connection: socket.socket) -> None:
        connection.sendall(
            frame(SETTINGS, 0, 0, struct.pack(">HIHI", 4, WINDOW, 5, FRAME_BYTES))
            + frame(6, 0, 0, b"12345678")
        )
        reader = connection.makefile("rb")
        assert reader.read(24).startswith(b"PRI")
        kept, room, stream_room = b"", 65_535, WINDOW
        while head := reader.read(9):
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream, payload = int.from_bytes(head[5:], "big"), reader.read(size)
            if kind == HEADERS:
                kept, stream_room = b"", WINDOW
            if kind != DATA:
                continue
            room, stream_room = room - size, stream_room - size
            if size > FRAME_BYTES or room < 0 or stream_room < 0:
                self.faults.append(f"{size} bytes, {room} and {stream_room} left")
            kept += payload
            if flags & END_STREAM:
                self._answer(connection, stream, kept)
            more = 65_535 - room
            connection.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", more)))
            room = 65_535
            if not flags & END_STREAM:
                refill = struct.pack(">I", WINDOW - stream_room)
                connection.sendall(frame(WINDOW_UPDATE, 0, stream, refill))
                stream_room = WINDOW

    def _answer(self, connection: socket.socket, stream: int, kept: bytes) -> None:
        whole = frame(HEADERS, 4, stream, b"\x88")
        for start in range(0, len(kept), 100_000):
            whole += frame(DATA, 0, stream, kept[start : start + 100_000])
        whole += frame(HEADERS, END_STREAM | 4, stream, b"\x88")
        for start in range(0, len(whole), 33_333):
            connection.sendall(whole[start : start + 33_333])


def test_grpc_call_of_any_size() -> None:
    server = EchoingServer()
    with served(server.serve) as connection:
        caller = GrpcCaller(connection, CONTENT, len(CONTENT))
        for _ in range(3):
            assert caller.call() == CONTENT
    assert server.faults == []


def rest_server(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        while connection.recv(2**16):
            for start in range(0, len(answer), 33_333):
                connection.sendall(answer[start : start + 33_333])

    return serve


def test_rest_call_of_any_size() -> None:
    head = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: %d\r\n\r\n" % len(CONTENT)
    with served(rest_server(head + CONTENT)) as connection:
        caller = RestCaller(connection, b"GET / HTTP/1.1\r\n\r\n", len(CONTENT))
        for _ in range(3):
            assert caller.call() == CONTENT


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n",
    ],
)
def test_rest_call_without_success(answer: bytes) -> None:
    with served(rest_server(answer)) as connection:
        caller = RestCaller(connection, b"GET / HTTP/1.1\r\n\r\n", 10)
        with pytest.raises(PeerError, match=r"it answered|has no length"):
            caller.call()


@pytest.mark.parametrize(
    ("theirs", "copy", "reached"),
    [
        ((2.0, 1.0), (9.0, 0.1), [True, True]),  # as good as Triton
        ((4.0, 0.2), (2.1, 0.95), [True, True]),  # as good as a copy
        ((4.0, 0.2), (9.0, 0.1), [False, False]),
        (None, (9.0, 0.1), [False, False]),  # Triton does not run
    ],
)
def test_tensors_beside_triton_or_a_copy(
    theirs: tuple[float, float] | None, copy: tuple[float, float], reached: list[bool]
) -> None:
    def moved(rate: float, cpu: float) -> Moved:
        return Moved(rates=[rate, 0.9 * rate, 1.1 * rate], cpu_ns=[cpu])

    figures = TensorFigures(
        "1 MB, gRPC", moved(2.0, 1.0), moved(*theirs) if theirs else Moved(), moved(*copy)
    )
    assert [verdict.reached for verdict in figures.verdicts()] == reached


def test_way_that_is_not_served_reaches_nothing() -> None:
    figures = TensorFigures("1 MB, gRPC", Moved(), Moved([1.0], [1.0]), Moved([1.0], [1.0]))
    assert [verdict.reached for verdict in figures.verdicts()] == [False, False]


def test_growth_leaves_out_the_first_tenth() -> None:
    memory = [50.0] * 10 + [100.0] * 80 + [102.0] * 10
    assert growth_percent(memory) == pytest.approx(2)
    figures = LifecycleFigures(
        cycles=100, answered=500, failed=1, reasons=["x"], cycle_ms=9.0, memory_mib=memory
    )
    assert [verdict.figures[0] for verdict in figures.verdicts()] == ["1", "2 %"]
    assert "501 requests" in figures.verdicts()[0].what


@pytest.mark.parametrize(
    ("peer", "reached"), [(900.0, True), (1100.0, False), (float("nan"), False)]
)
def test_steps_beside_triton(peer: float, reached: bool) -> None:
    figures = SequenceFigures(
        steps_per_s=2000, requests_per_s=2000, ratio=1.0, step_cpu_us=50, request_cpu_us=50,
        failures=0, peer_steps_per_s=peer, peer_step_cpu_us=100,
    )  # fmt: skip
    assert [verdict.reached for verdict in verdicts(figures)] == [True, reached, True]
