"""A minimal server for the small model's REST request: the yardstick for our server.

    python -m bench.servers.yardstick STORE MODEL ARTIFACT    prints its port, serves until killed

httptools, orjson, NumPy, one list that becomes the batch, one thread that runs it. No checks,
limits, deadlines, priorities, metrics, logs, ids or errors. Its cost is that of the machine, the
kernel and the libraries; the ratio of our figure to it can be compared between machines.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from statistics import median
from typing import Any

import httptools
import numpy as np
import orjson
import uvloop

from bench.measured.golden_model import (
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
)
from bench.measured.raw_model import open_artifact
from bench.peers.load import Load, load_grpc, load_rest
from bench.peers.peer import Ask, Form
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import measured_server
from bench.servers.pinning import SERVER_CORE, pinned_to
from flambeau.protocol.tensors import Array
from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.inference.backends.backend import Backend

CLIENTS = 64
MAX_BATCH_ROWS = 64
WARM_UP_S = 1
START = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


@dataclass(frozen=True, slots=True, kw_only=True)
class YardstickFigures:
    """CPU time for each request at `CLIENTS` clients, medians over the rounds."""

    server_cpu_us: float
    """Of ours, REST JSON."""
    grpc_cpu_us: float
    """Of ours, gRPC."""
    yardstick_cpu_us: float
    ratio: float
    """Median of the ratios of single rounds, REST JSON."""
    grpc_ratio: float
    """The same for our gRPC; the yardstick has REST only."""


def measure_against_yardstick(
    store: ModelStore, manifest: Manifest, artifact: str, rounds: int, seconds: int
) -> YardstickFigures:
    """Loads our server and the yardstick in turns; prints as it goes.

    Args:
        store: model store of the version.
        manifest: manifest of a version with one input and one output.
        artifact: name of the artifact.
        rounds: number of rounds; the figures are their medians.
        seconds: duration of the load of each of the two in a round.

    Raises:
        PeerError: no request was answered.
    """
    model = golden_model(store, manifest)
    ask = ask_for(model, Form.JSON, model.rows[:1])
    grpc_ask = ask_for(model, Form.GRPC, model.rows[:1])
    ours, grpc, least = [], [], []
    with (
        measured_server(store.url, [manifest.model], artifact) as server,
        running_yardstick(store, manifest, artifact) as (pid, address),
    ):
        answer_bytes = check_answers(server, model, artifact)[Form.GRPC]
        for _ in range(rounds):
            ours.append(_cpu_us(server.pid, server.http, ask, seconds))
            least.append(_cpu_us(pid, address, ask, seconds))
            grpc.append(_cpu_us(server.pid, server.grpc, grpc_ask, seconds, answer_bytes))
            print(
                f"  ours {ours[-1]:.0f} µs over REST, {grpc[-1]:.0f} µs over gRPC, "
                f"yardstick {least[-1]:.0f} µs",
                flush=True,
            )
    return YardstickFigures(
        server_cpu_us=median(ours),
        grpc_cpu_us=median(grpc),
        yardstick_cpu_us=median(least),
        ratio=median(mine / its for mine, its in zip(ours, least, strict=True)),
        grpc_ratio=median(mine / its for mine, its in zip(grpc, least, strict=True)),
    )


def _cpu_us(pid: int, address: str, ask: Ask, seconds: int, answer_bytes: int = 0) -> float:
    """Returns the server's CPU time a request; over gRPC if the answer's bytes are given."""

    def load(duration_s: int) -> Load:
        if answer_bytes:
            return load_grpc(address, ask, CLIENTS, duration_s, answer_bytes)
        return load_rest(address, [ask], CLIENTS, duration_s)

    load(WARM_UP_S)
    before = cpu_seconds(pid)
    answered = load(seconds).answered
    return (cpu_seconds(pid) - before) / answered * 1e6


@contextlib.contextmanager
def running_yardstick(
    store: ModelStore, manifest: Manifest, artifact: str
) -> Iterator[tuple[int, str]]:
    """Runs the yardstick; yields its pid and address."""
    command = [sys.executable, "-m", "bench.servers.yardstick", store.url, manifest.model, artifact]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=pinned_to(SERVER_CORE)
    )
    try:
        assert process.stdout is not None
        yield process.pid, f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


class _Engine:
    """Queued rows, and the thread that runs them."""

    def __init__(self, backend: Backend, name: str, output: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._backend, self._name, self._output = backend, name, output
        self._waiting: list[tuple[Array, _Connection]] = []
        self._batches: SimpleQueue[list[tuple[Array, _Connection]]] = SimpleQueue()
        self._busy = False
        threading.Thread(target=self._work, daemon=True).start()

    def take(self, row: Array, connection: "_Connection") -> None:
        """Queues one row; it runs in a batch with all other queued rows."""
        if not self._waiting:
            self._loop.call_soon(self._start)
        self._waiting.append((row, connection))

    def _start(self) -> None:
        if self._waiting and not self._busy:
            batch = self._waiting[:MAX_BATCH_ROWS]
            del self._waiting[:MAX_BATCH_ROWS]
            self._busy = True
            self._batches.put(batch)

    def _work(self) -> None:
        while True:
            batch = self._batches.get()
            rows = np.concatenate([row for row, _ in batch])
            outputs = self._backend.run({self._name: rows})[self._output]
            self._loop.call_soon_threadsafe(self._answer, batch, outputs)

    def _answer(self, batch: list[tuple[Array, "_Connection"]], outputs: Array) -> None:
        self._busy = False
        self._start()
        for number, (_, connection) in enumerate(batch):
            row = orjson.dumps(outputs[number], option=orjson.OPT_SERIALIZE_NUMPY)
            connection.answer(b'{"outputs":[{"name":"logits","data":%b}]}' % row)


class _Connection(asyncio.Protocol):
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        entry = orjson.loads(self._body)["inputs"][0]
        self._body = b""
        self._engine.take(np.array(entry["data"], np.float32).reshape(entry["shape"]), self)

    def answer(self, body: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(START % (len(body), body))


async def _serve(backend: Backend, name: str, output: str) -> None:
    engine = _Engine(backend, name, output)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(engine), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Runs the yardstick server."""
    parser = argparse.ArgumentParser(prog="python -m bench.servers.yardstick", description=__doc__)
    for name in ("store", "model", "artifact"):
        parser.add_argument(name)
    given = parser.parse_args()
    store = ModelStore(given.store)
    manifest = newest_manifest(store, given.model)
    backend = open_artifact(store, manifest, given.artifact)
    signature = manifest.signature
    uvloop.run(_serve(backend, signature.inputs[0].name, signature.outputs[0].name))


if __name__ == "__main__":
    main()
