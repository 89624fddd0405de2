"""Large tensors to a model that reads little of them: CPU time, throughput, and the event loop.

The model gives the first number of each row, so that the figures are those of the server: to find
the largest number of 1 MB takes 0.2 ms. A neighbour sends pings over a connection of its own
beside a client of large JSON: while the event loop is held, they are not answered.
"""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

import flambeau
from bench.limits.connections import TIMEOUT_S, answer
from bench.loads.closed_loop import closed_loop, python_load
from bench.measured.golden_model import ask_for, golden_model, newest_manifest
from bench.peers.peer import Ask, Form, PeerError
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import measured_server
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore

MODEL, ROW = "first-number", 250_000
SIZES = {"1 MB": 1, "64 MB": 64}
"""Rows of `ROW` FP32 numbers."""
CASES = [(form, size) for size in SIZES for form in (Form.BINARY, Form.GRPC)]
CASES.append((Form.JSON, "1 MB"))
PING = b"GET /v2/health/live HTTP/1.1\r\nHost: bench\r\n\r\n"
PING_EVERY_S = 0.001
WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFigures:
    """Medians of the rounds."""

    cpu_ms: dict[str, float]
    """CPU time of the server for a request, by protocol and size."""
    gigabytes_per_second: dict[str, float]
    """Of one client."""
    longest_ping_ms: float
    """Longest of a round beside JSON of 1 MB."""
    longest_ping_alone_ms: float
    """Longest of a round without any load."""
    failures: int


@contextmanager
def tensor_server(folder: Path) -> Iterator["TensorServer"]:
    """Publishes the model into a folder, and serves it."""
    store = ModelStore(str(folder))
    flambeau.publish(
        lambda x: x[:, :1], {"x": torch.rand(2, ROW)}, name=MODEL, to=store.url,
        artifacts=["onnx"], max_batch_size=max(SIZES.values()),
    )  # fmt: skip
    with measured_server(store.url, [MODEL]) as server:
        yield TensorServer(store, server)


class TensorServer:
    """The loads on a running server, a round at a time."""

    def __init__(self, store: ModelStore, server: ServerProcess) -> None:
        self._server, self._failures = server, 0
        model = golden_model(store, newest_manifest(store, MODEL))
        self._asks: dict[tuple[Form, str], Ask] = {}
        for form, size in CASES:
            array = np.full((SIZES[size], ROW), 0.5, np.float32)
            self._asks[form, size] = ask_for(model, form, array)
            python_load(server, form, [self._asks[form, size]], 1, WARM_UP_S)
        self._cpu_ms: dict[str, list[float]] = {}
        self._rates: dict[str, list[float]] = {}
        self._pings: list[tuple[float, float]] = []

    def measure(self, seconds: int) -> None:
        """Runs each load once."""
        for (form, size), ask in self._asks.items():
            if form is Form.JSON:
                self._pings.append((self._longest_ping(seconds), self._longest_ping(seconds, ask)))
                continue
            before = cpu_seconds(self._server.pid)
            load = python_load(self._server, form, [ask], 1, seconds)
            cpu_s = cpu_seconds(self._server.pid) - before
            self._failures += load.failed
            if not load.answered:
                raise PeerError(f"no answer to {size} over {form}")
            name, moved = f"{size}, {form}", SIZES[size] * ROW * 4
            self._cpu_ms.setdefault(name, []).append(cpu_s / load.answered * 1000)
            self._rates.setdefault(name, []).append(moved / load.p50_ms / 1e6)

    def figures(self) -> TensorFigures:
        """Returns the medians of the rounds."""
        alone, beside = zip(*self._pings, strict=True)
        return TensorFigures(
            cpu_ms={name: median(values) for name, values in self._cpu_ms.items()},
            gigabytes_per_second={name: median(values) for name, values in self._rates.items()},
            longest_ping_ms=median(beside),
            longest_ping_alone_ms=median(alone),
            failures=self._failures,
        )

    def _longest_ping(self, seconds: int, ask: Ask | None = None) -> float:
        """Returns milliseconds of the slowest answer to a ping, beside a client of a request."""
        host, _, port = self._server.http.rpartition(":")
        longest_s, end = 0.0, time.monotonic() + seconds
        with (
            ThreadPoolExecutor(1) as pool,
            closing(socket.create_connection((host, int(port)))) as connection,
        ):
            connection.settimeout(TIMEOUT_S)
            answer(connection, PING)
            load = ask and pool.submit(
                closed_loop, self._server, Form.JSON, ask, 1, seconds, answer_bytes=0
            )
            while time.monotonic() < end:
                sent = time.monotonic()
                answer(connection, PING)
                longest_s = max(longest_s, time.monotonic() - sent)
                time.sleep(PING_EVERY_S)
            self._failures += load.result().failed if load else 0
        return longest_s * 1000
