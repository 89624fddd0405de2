"""`python -m bench.grpc_variants`: what each way of serving gRPC with grpcio costs.

In: nothing. Out: a table: server CPU a request, requests a second and mean batch of each variant.

Every variant answers the same inference (tiny MLP, 64 → 256 → 10, raw FP32) through the same
batcher: work-conserving, one worker thread, NumPy. They differ in who waits for what. Each server
has a core to itself, `h2load` (nghttp2) the other. All run at the same time and are loaded in
turns, so that a moment in which the machine is slow hits all of them.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import uvloop
from grpc import aio

from bench.peers.load import PREFIX_BYTES, clients_at_hand, load_grpc
from bench.peers.peer import Ask
from bench.pinning import SERVER_CORE, pinned_to
from protos import open_inference_pb2 as pb
from services.gateway.grpc_edge import SERVICE
from services.gateway.grpc_mailbox import Mailbox
from services.gateway.grpc_threads import become_patient, starting_patient_threads

MAX_BATCH_ROWS = 32
THREADS = 288
INFER = f"/{SERVICE}/ModelInfer"
NO_ROWS = np.empty((0, 10), np.float32)
NO_EVENT_ENGINE = "-event_engine_listener,-event_engine_client"

Rows = npt.NDArray[np.float32]
Answered = Callable[[Rows], None]


class Engine:
    """The same batcher and model behind every variant; all but `_work` runs on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        generator = np.random.default_rng(0)
        self._hidden = generator.standard_normal((64, 256), dtype=np.float32)
        self._last = generator.standard_normal((256, 10), dtype=np.float32)
        self._waiting: list[tuple[Rows, Answered]] = []
        self._batches: SimpleQueue[list[tuple[Rows, Answered]]] = SimpleQueue()
        self._busy = self._will_start = False
        self.rows = self.batches = 0
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, row: Rows, answered: Answered) -> None:
        """Runs one row [1, 64] with whatever else is there; `answered` gets [1, 10]."""
        self._waiting.append((row, answered))
        if not self._busy and not self._will_start:
            self._will_start = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._will_start = False
        if self._waiting and not self._busy:
            batch = self._waiting[:MAX_BATCH_ROWS]
            del self._waiting[:MAX_BATCH_ROWS]
            self._busy = True
            self.rows += len(batch)
            self.batches += 1
            self._batches.put(batch)

    def _work(self) -> None:
        while True:
            batch = self._batches.get()
            hidden = np.maximum(np.concatenate([row for row, _ in batch]) @ self._hidden, 0)
            self._loop.call_soon_threadsafe(self._finish, batch, hidden @ self._last)

    def _finish(self, batch: list[tuple[Rows, Answered]], outputs: Rows) -> None:
        self._busy = False
        self._start()
        for position, (_, answered) in enumerate(batch):
            answered(outputs[position : position + 1])


def decode(message: pb.ModelInferRequest) -> Rows:
    """The row of a request."""
    return np.frombuffer(message.raw_input_contents[0], np.float32).reshape(1, 64)


def encode(message: pb.ModelInferRequest, row: Rows) -> pb.ModelInferResponse:
    """Its answer."""
    response = pb.ModelInferResponse(model_name="tiny", model_version="1", id=message.id)
    response.outputs.add(name="y", datatype="FP32", shape=row.shape)
    response.raw_output_contents.append(row.tobytes())
    return response


Infer = Callable[[Any, grpc.ServicerContext], pb.ModelInferResponse]


def echoing(_: Engine, __: "Variant") -> Infer:
    """No loop and no batch: what grpcio's threads cost alone."""
    row = np.zeros((1, 10), np.float32)
    return lambda message, context: encode(message, row)


def by_coroutine(engine: Engine, _: "Variant") -> Infer:
    """A task and two futures a call; docs/adr/0002 had this."""
    loop = asyncio.get_running_loop()

    async def run(message: pb.ModelInferRequest) -> pb.ModelInferResponse:
        answer: asyncio.Future[Rows] = loop.create_future()
        engine.submit(decode(message), answer.set_result)
        return encode(message, await answer)

    def infer(message: Any, context: grpc.ServicerContext) -> pb.ModelInferResponse:
        work = asyncio.run_coroutine_threadsafe(run(message), loop)
        context.add_callback(lambda: None)
        return work.result()

    return infer


def by_mailbox(engine: Engine, variant: "Variant") -> Infer:
    """A letter a call; the answer comes through a queue of its own."""
    mailbox = Mailbox(asyncio.get_running_loop())

    def infer(message: Any, context: grpc.ServicerContext) -> pb.ModelInferResponse:
        answer: SimpleQueue[Rows] = SimpleQueue()
        context.add_callback(lambda: None)
        if variant.decode_on_loop:
            mailbox.post(lambda: engine.submit(decode(message), answer.put))
        else:
            row = decode(message)
            mailbox.post(lambda: engine.submit(row, answer.put))
        return encode(message, answer.get())

    return infer


async def serve_threads(engine: Engine, variant: "Variant") -> int:
    """grpcio's threaded server. Returns its port."""
    if variant.switch_interval_s:
        sys.setswitchinterval(variant.switch_interval_s)
    handlers = _handlers(variant.infer(engine, variant))
    patient = variant.patient
    with starting_patient_threads() if patient else contextlib.nullcontext():
        server = grpc.server(
            ThreadPoolExecutor(variant.threads, initializer=become_patient if patient else None),
            options=variant.options,
        )
        if variant.registered:
            server.add_registered_method_handlers(SERVICE, handlers)  # type: ignore[attr-defined]
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port: int = server.add_insecure_port("127.0.0.1:0")
        server.start()
    _KEPT.append(server)
    return port


async def serve_aio(engine: Engine, variant: "Variant") -> int:
    """grpc.aio on the loop that owns the engine."""
    if variant.patient:
        become_patient()

    async def infer(message: Any, context: Any) -> pb.ModelInferResponse:
        answer: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()
        engine.submit(decode(message), _unless_done(answer))
        return encode(message, await answer)

    return await _start_aio(infer, variant)


async def serve_aio_apart(engine: Engine, variant: "Variant") -> int:
    """grpc.aio on a loop of its own, in a thread of its own; a mailbox each way."""
    ports: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    to_engine = Mailbox(asyncio.get_running_loop())

    async def run() -> None:
        loop = asyncio.get_running_loop()
        back = Mailbox(loop)

        async def infer(message: Any, context: Any) -> pb.ModelInferResponse:
            answer: asyncio.Future[Rows] = loop.create_future()
            row, give = decode(message), _unless_done(answer)
            to_engine.post(lambda: engine.submit(row, lambda y: back.post(lambda: give(y))))
            return encode(message, await answer)

        port = await _start_aio(infer, variant)
        to_engine.post(lambda: ports.set_result(port))
        await asyncio.Event().wait()

    def thread() -> None:
        if variant.patient:
            become_patient()
        uvloop.run(run())

    threading.Thread(target=thread, daemon=True).start()
    return await ports


_KEPT: list[object] = []
"""Servers, which end when nobody holds them."""


def _handlers(infer: Any) -> dict[str, Any]:
    return {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(
            infer,
            request_deserializer=pb.ModelInferRequest.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )
    }


async def _start_aio(infer: Any, variant: "Variant") -> int:
    server = aio.server(options=variant.options)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, _handlers(infer)),)
    )
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _KEPT.append(server)
    return port


def _unless_done(answer: asyncio.Future[Rows]) -> Answered:
    def give(row: Rows) -> None:
        if not answer.done():  # the caller has gone
            answer.set_result(row)

    return give


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to serve."""

    serve: Callable[[Engine, "Variant"], Awaitable[int]] = serve_threads
    infer: Callable[[Engine, "Variant"], Infer] = by_mailbox
    patient: bool = True
    decode_on_loop: bool = False
    registered: bool = False
    threads: int = THREADS
    switch_interval_s: float = 0.0
    options: tuple[tuple[str, Any], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


VARIANTS = {
    "threads, coroutine": Variant(infer=by_coroutine, patient=False),
    "threads, mailbox": Variant(patient=False),
    "patient threads, mailbox (ours)": Variant(),
    "  decoded on the loop": Variant(decode_on_loop=True),
    "  16 threads": Variant(threads=16),
    "  registered method": Variant(registered=True),
    "  grpc.minimal_stack": Variant(options=(("grpc.minimal_stack", 1),)),
    "  optimized for throughput": Variant(options=(("grpc.optimization_target", "throughput"),)),
    "  no BDP probes": Variant(options=(("grpc.http2.bdp_probe", 0),)),
    "  poll strategy `poll`": Variant(environment={"GRPC_POLL_STRATEGY": "poll"}),
    "  without the event engine": Variant(environment={"GRPC_EXPERIMENTS": NO_EVENT_ENGINE}),
    "  switch interval 50 ms": Variant(switch_interval_s=0.05),
    "patient threads, coroutine": Variant(infer=by_coroutine),
    "aio, main loop": Variant(serve=serve_aio, patient=False),
    "aio, main loop, patient": Variant(serve=serve_aio),
    "aio, loop of its own": Variant(serve=serve_aio_apart, patient=False),
    "aio, loop of its own, patient": Variant(serve=serve_aio_apart),
    "patient threads, echo alone": Variant(infer=echoing),
}


async def _serve(variant: Variant) -> None:
    """The server process: prints its port, and its figures so far for each line it reads."""
    engine = Engine()
    print(await variant.serve(engine, variant), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(engine.rows, engine.batches, time.process_time(), flush=True)


class Server:
    """A server process on its core."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cpu_us: list[float] = []
        self.rates: list[float] = []
        self.p99_ms: list[float] = []
        self.batches: list[float] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.grpc_variants", "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=pinned_to(SERVER_CORE),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **VARIANTS[name].environment},
        )
        self._port = int(self._line())

    def load(self, ask: Ask, answer_bytes: int, clients: int, seconds: int) -> None:
        """Loads it, and notes what that took.

        Raises:
            PeerError: nothing was answered.
        """
        before = self._figures()
        load = load_grpc(f"127.0.0.1:{self._port}", ask, clients, seconds, answer_bytes)
        rows, batches, cpu_s = (
            now - then for now, then in zip(self._figures(), before, strict=True)
        )
        self.cpu_us.append(cpu_s / load.answered * 1e6)
        self.rates.append(load.answered / load.duration_s)
        self.p99_ms.append(load.p99_ms)
        self.batches.append(rows / max(1, batches))

    def _figures(self) -> list[float]:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return [float(figure) for figure in self._line().split()]

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def canned_call() -> tuple[Ask, int]:
    """The one call that is sent again and again, and how many bytes answer it."""
    message = pb.ModelInferRequest(model_name="tiny")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 64])
    message.raw_input_contents.append(np.ones((1, 64), np.float32).tobytes())
    answer = encode(message, np.zeros((1, 10), np.float32))
    ask = Ask(path=INFER, body=message.SerializeToString(), read=lambda headers, body: NO_ROWS)
    return ask, PREFIX_BYTES + len(answer.SerializeToString())


@contextlib.contextmanager
def _servers(names: list[str]) -> Iterator[list[Server]]:
    servers: list[Server] = []
    try:
        for name in names:
            servers.append(Server(name))
        yield servers
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


def _measure(names: list[str], clients: int, seconds: int, rounds: int) -> None:
    ask, answer_bytes = canned_call()
    with _servers(names) as servers:
        for number in range(rounds + 1):
            for server in servers:
                server.load(ask, answer_bytes, clients, seconds if number else 1)
    print(f"{clients} clients; the first round is not counted")
    print(f"{'':32} CPU: least, median  requests  p99  batch")
    for server in servers:
        cpu_us, rates, p99_ms, batches = (
            figures[1:] for figures in (server.cpu_us, server.rates, server.p99_ms, server.batches)
        )
        print(
            f"{server.name:32} {min(cpu_us):4.0f} {statistics.median(cpu_us):4.0f} µs "
            f"{statistics.median(rates):7,.0f}/s {statistics.median(p99_ms):5.1f} ms "
            f"{statistics.median(batches):5.1f}"
        )


def main() -> None:
    """Measures all variants, or those named."""
    parser = argparse.ArgumentParser(prog="python -m bench.grpc_variants", description=__doc__)
    parser.add_argument("variants", nargs="*", help="which; all of them by default")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=1, help="of each round of load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(_serve(VARIANTS[arguments.serve]))
        return
    clients_at_hand()
    names = [name for name in VARIANTS if not arguments.variants or name in arguments.variants]
    _measure(names, arguments.clients, arguments.seconds, arguments.rounds)


if __name__ == "__main__":
    main()
