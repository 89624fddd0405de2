"""Many open connections with few requests: memory and CPU of the server.

The client is a loop over blocking sockets, the cheapest there is in Python: one request at a time,
each over the next connection.
"""

import itertools
import resource
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.figures.verdicts import percentile
from bench.loads.closed_loop import python_load
from bench.measured.golden_model import (
    ask_for,
    check_answers,
    golden_model,
    http_request,
    newest_manifest,
    served_artifact,
)
from bench.peers.peer import Form, PeerError
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import measured_server
from bench.servers.process_figures import resident_mebibytes
from model_store.store import ModelStore

MODEL = "tiny-mlp"
CONNECTIONS = 10_000
SPARE_FILES = 1_000
"""Open files of server and client that are no connections, at most."""
PER_SECOND = 100
TIMEOUT_S = 30
WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures:
    """Cost of the connections to the server."""

    connections: int
    """Fewer than `CONNECTIONS` if the hard limit of open files allows no more."""
    bytes_each: float
    """Growth of the server's memory in RAM, for each connection that had one answer."""
    server_cpu_share: float
    """CPU seconds of the server in a second of the load."""
    client_cpu_share: float
    p99_ms: float


def connections_that_fit() -> int:
    """Raises the soft limit of open files; returns the number of connections that fit in it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < CONNECTIONS + SPARE_FILES:
        print(f"the hard limit of open files, {hard:,}, allows fewer than {CONNECTIONS:,}")
    return min(CONNECTIONS, hard - SPARE_FILES)


def measure_connections(store: ModelStore, seconds: float) -> ConnectionFigures:
    """Opens all connections, uses each once, and then sends `PER_SECOND` requests a second.

    Raises:
        PeerError: a response is wrong or missing.
    """
    count = connections_that_fit()
    manifest = newest_manifest(store, MODEL)
    model = golden_model(store, manifest)
    ask = ask_for(model, Form.JSON, model.rows[:1])
    request = http_request(ask)
    setting = f"max_connections={count + SPARE_FILES}"
    with measured_server(store.url, [MODEL], "", setting) as server, ExitStack() as stack:
        check_answers(server, model, served_artifact(manifest, ""))
        python_load(server, Form.JSON, [ask], 1, WARM_UP_S)
        host, _, port = server.http.rpartition(":")
        before_mib, opened = resident_mebibytes(server.pid), []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection((host, int(port)))))
            opened[-1].settimeout(TIMEOUT_S)
            answer(opened[-1], request)
        grown_mib = resident_mebibytes(server.pid) - before_mib
        cpu_s, own_s = cpu_seconds(server.pid), time.process_time()
        took_s, lasted_s = _steady(opened, request, seconds)
        return ConnectionFigures(
            connections=count,
            bytes_each=grown_mib * 2**20 / count,
            server_cpu_share=(cpu_seconds(server.pid) - cpu_s) / lasted_s,
            client_cpu_share=(time.process_time() - own_s) / lasted_s,
            p99_ms=percentile(took_s, 99) * 1000,
        )


def _steady(
    opened: Sequence[socket.socket], request: bytes, seconds: float
) -> tuple[list[float], float]:
    """Returns the seconds of each request, and of all."""
    took_s, started = [], time.monotonic()
    for number, connection in zip(
        range(round(seconds * PER_SECOND)), itertools.cycle(opened), strict=False
    ):
        due = started + number / PER_SECOND
        time.sleep(max(due - time.monotonic(), 0.0))
        sent = time.monotonic()
        answer(connection, request)
        took_s.append(time.monotonic() - sent)
    return took_s, time.monotonic() - started


def answer(connection: socket.socket, request: bytes) -> bytes:
    """Sends a request and returns the body of its response.

    Raises:
        PeerError: the response is no 200, or is cut off.
    """
    connection.sendall(request)
    data = b""
    while True:
        received = connection.recv(65_536)
        data += received
        head, ended, body = data.partition(b"\r\n\r\n")
        if not received or not data.startswith(b"HTTP/1.1 200"):
            raise PeerError(f"no answer over an open connection, but {data[:200]!r}")
        if ended:
            length = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
            if len(body) >= int(length):
                return body
