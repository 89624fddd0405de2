"""The gRPC edge over a real port, before a worker played by the test."""

import asyncio
import contextlib
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from model_store.store import ModelStore
from protos import open_inference_pb2 as pb
from protos.flambeau.v1 import registry_pb2
from services.errors import BackendError, DeviceError, QueueFullError, ShuttingDownError
from services.gateway.admission import Admission
from services.gateway.edges import grpc_edge
from services.gateway.edges.grpc_edge import GrpcEdge
from services.gateway.inference import Inference
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import ServerFacts
from services.queueing.directory import Directory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import Lane
from services.readiness import Look, Readiness
from services.registry.registry import Registry
from services.registry.registry_access import RegistryAccess
from services.telemetry.metrics import Metrics
from services.wire.http2 import grpc_call
from tests.fixtures.queue_ends import echo_of
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one
from tests.unit.wire.http_wire import make_budget, make_limits

INFER = "/inference.GRPCInferenceService/ModelInfer"
LANE = Lane("echo", 1)
TIMEOUT_S = 60.0
WAITING = 64
CALLS = 10_000
AT_ONCE = 96


class Worker:
    """The intake of the one lane: `act` handles an entry, by default with no effect."""

    waiting = 0

    def __init__(self, changed: asyncio.Event) -> None:
        self.entries: list[Entry] = []
        self.act: Callable[[Entry], None] = lambda entry: None
        self._changed = changed

    def accept(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._changed.set()
        self.act(entry)

    def discard(self, entry: Entry, reason: str) -> None:
        assert entry.dead
        assert reason in {"cancelled", "expired", "failed"}
        self._changed.set()


class WatchedAccounting(RequestAccounting):
    """Signals the closing of a record."""

    def __init__(self, metrics: Metrics, directory: Directory, changed: asyncio.Event) -> None:
        super().__init__(metrics, directory, access_log=False)
        self._changed = changed

    def count(
        self, lane: Lane | None, protocol: str, code: str, seconds: float, trace_id: str = ""
    ) -> None:
        super().count(lane, protocol, code, seconds, trace_id)
        self._changed.set()


def echo(entry: Entry) -> None:
    """Answers with the inputs."""
    entry.finish(echo_of(entry))


class Gateway:
    """Everything on the gateway's side of the queue, and one lane."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.metrics = Metrics("0")
        self._changed = asyncio.Event()
        directory = serving(one_to_one((), datatype="INT64"), LANE)
        self.queue = MemoryQueue(max_depth=1024)
        self.admission = Admission(
            directory, self.queue, self.metrics, max_in_flight_requests=4096, request_timeout_s=60
        )
        self.accounting = WatchedAccounting(self.metrics, directory, self._changed)
        facts = ServerFacts("0", directory, self.admission, Readiness())
        facts.readiness.see(Look())
        self.edge = GrpcEdge(
            self.admission,
            facts,
            self.accounting,
            limits=make_limits(),
            budget=make_budget(),
            registry=registry,
        )
        self.worker = Worker(self._changed)
        self.queue.open(LANE, self.worker)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Starts the edge."""
        await self.edge.start(self._socket)

    def counted(self) -> Counter[str]:
        """Returns closed records by code, of all models."""
        found: Counter[str] = Counter()
        (family,) = self.metrics.requests.collect()
        for sample in family.samples:
            found[sample.labels["code"]] += int(sample.value)
        return found

    async def until(self, reached: Callable[[], bool]) -> None:
        """Waits for a change by the worker or the accounting."""
        async with asyncio.timeout(TIMEOUT_S):
            while not reached():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    await gateway.start()
    yield gateway
    await gateway.edge.stop(0)


@pytest.fixture
async def channel(gateway: Gateway) -> AsyncIterator[grpc.Channel]:
    with grpc.insecure_channel(gateway.address) as channel:
        yield channel


def request(number: int = 0) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="echo")
    message.inputs.add(name="x", datatype="INT64", shape=[1])
    message.raw_input_contents.append(np.array([number], np.int64).tobytes())
    return message


def start(channel: grpc.Channel, number: int = 0, timeout_s: float = TIMEOUT_S) -> Any:
    """Starts a call."""
    serialize = pb.ModelInferRequest.SerializeToString
    call = channel.unary_unary(INFER, serialize, pb.ModelInferResponse.FromString)
    return call.future(request(number), timeout=timeout_s)


async def code_of(call: Any) -> grpc.StatusCode:
    """Returns the status of a call, once it is over."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    call.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
    async with asyncio.timeout(TIMEOUT_S):
        await over.wait()
    code: grpc.StatusCode = call.code()
    return code


def trailing(call: Any) -> dict[str, str]:
    return {item.key: item.value for item in call.trailing_metadata()}


async def test_error_of_the_worker_carries_a_hint_when_to_retry(
    gateway: Gateway, channel: grpc.Channel
) -> None:
    gateway.worker.act = lambda entry: entry.finish(DeviceError("device lost"))
    call = start(channel)
    assert await code_of(call) is grpc.StatusCode.UNAVAILABLE
    assert call.details() == "device lost"
    assert (trailing(call)["retry-after"], trailing(call)["grpc-retry-pushback-ms"]) == (
        "1",
        "1000",
    )
    gateway.worker.act = lambda entry: entry.finish(BackendError("bad model"))
    call = start(channel)
    assert await code_of(call) is grpc.StatusCode.INTERNAL
    assert set(trailing(call)) == {"x-request-id"}


async def test_grpc_clients_understand_the_hint(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that would wait a minute by its own policy tries again when it is told to."""
    hint = (("grpc-retry-pushback-ms", "20"),)
    monkeypatch.setattr(grpc_call, "retry_hint", lambda _: hint)

    def refuse_once(entry: Entry) -> None:
        if len(gateway.worker.entries) == 1:
            entry.finish(QueueFullError("full"))
        else:
            echo(entry)

    gateway.worker.act = refuse_once
    policy = {
        "maxAttempts": 2, "initialBackoff": "60s", "maxBackoff": "60s", "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    }  # fmt: skip
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    with grpc.insecure_channel(gateway.address, [("grpc.service_config", config)]) as channel:
        assert await code_of(start(channel)) is grpc.StatusCode.OK
    assert len(gateway.worker.entries) == 2


async def test_cancelled_and_late_calls_free_their_work(
    gateway: Gateway, channel: grpc.Channel
) -> None:
    gone, late = start(channel), start(channel, timeout_s=0.5)
    await gateway.until(lambda: len(gateway.worker.entries) == 2)
    gone.cancel()
    assert await code_of(gone) is grpc.StatusCode.CANCELLED
    assert await code_of(late) is grpc.StatusCode.DEADLINE_EXCEEDED
    await gateway.until(lambda: all(entry.dead for entry in gateway.worker.entries))
    await gateway.until(lambda: gateway.counted().total() == 2)
    assert gateway.counted() == {"CANCELLED": 1, "DEADLINE_EXCEEDED": 1}
    assert await gateway.queue.wait_empty(TIMEOUT_S) == 0


async def test_stop_while_calls_wait(gateway: Gateway, channel: grpc.Channel) -> None:
    """Calls nobody answers, watches nobody leaves: neither holds the server."""
    calls = [start(channel, number) for number in range(WAITING)]
    watch = HealthStub(channel).Watch
    watches = [watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S) for _ in range(4)]
    await gateway.until(lambda: len(gateway.worker.entries) == WAITING)
    async with asyncio.timeout(TIMEOUT_S / 2):
        await gateway.edge.stop(0.1)
    for call in calls:
        assert await code_of(call) is not grpc.StatusCode.OK
    for watch in watches:
        with pytest.raises(grpc.RpcError):
            await asyncio.to_thread(list, watch)
    await gateway.until(lambda: gateway.counted().total() == WAITING)
    assert await gateway.queue.wait_empty(TIMEOUT_S) == 0


async def test_calls_answered_within_the_grace_are_answered(
    gateway: Gateway, channel: grpc.Channel
) -> None:
    calls = [start(channel, number) for number in range(8)]
    await gateway.until(lambda: len(gateway.worker.entries) == 8)
    stopping = asyncio.create_task(gateway.edge.stop(TIMEOUT_S))
    await asyncio.sleep(0)
    for entry in gateway.worker.entries:
        echo(entry)
    async with asyncio.timeout(TIMEOUT_S / 2):
        await stopping
    for call in calls:
        assert await code_of(call) is grpc.StatusCode.OK


async def test_stopping_twice_changes_nothing(gateway: Gateway) -> None:
    await gateway.edge.stop(0)
    await gateway.edge.stop(0)


async def test_health_is_answered_beside_a_full_server(
    gateway: Gateway, channel: grpc.Channel
) -> None:
    calls = [start(channel, number) for number in range(WAITING)]
    await gateway.until(lambda: len(gateway.worker.entries) == WAITING)
    check = HealthStub(channel).Check.future(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    assert await code_of(check) is grpc.StatusCode.OK
    for entry in gateway.worker.entries:
        echo(entry)
    for call in calls:
        assert await code_of(call) is grpc.StatusCode.OK


class Chaos:
    """A worker that answers at once, later, in another order, with an error, or never."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._held: list[Entry] = []

    def act(self, entry: Entry) -> None:
        loop, draw = asyncio.get_running_loop(), self._random.random()
        if draw < 0.2:
            echo(entry)
        elif draw < 0.3:
            entry.finish(BackendError("no"))
        elif draw < 0.6:
            loop.call_soon(echo, entry)
        elif draw < 0.9:
            self._held.append(entry)
            if len(self._held) > 16:
                self._random.shuffle(self._held)
                while self._held:
                    echo(self._held.pop())
        else:
            loop.call_later(self._random.random() * 0.01, echo, entry)


def shoot(address: str, seed: int) -> dict[int, Any]:
    """Sends all calls, and cancels some in flight; blocks until all are over.

    Returns:
        The finished calls by number.
    """
    random_, slots = random.Random(seed), threading.Semaphore(AT_ONCE)
    calls: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(
                grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(4)
        ]
        for number in range(CALLS):
            # Held answers wait for company, which comes only while there are slots.
            assert slots.acquire(timeout=TIMEOUT_S)
            timeout_s = random_.choice((0.002, 0.02, *(1.0,) * 8))
            call = start(random_.choice(channels), number, timeout_s)
            calls[number] = call
            call.add_done_callback(lambda _: slots.release())
            if random_.random() < 0.2:
                calls[random_.randint(max(0, number - AT_ONCE), number)].cancel()
        for _ in range(AT_ONCE):
            assert slots.acquire(timeout=TIMEOUT_S)
    return calls


async def test_ten_thousand_calls_have_one_outcome_each(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    gateway.worker.act = Chaos(random.Random(seed)).act
    opened: list[Inference] = []
    closed: Counter[int] = Counter()
    threads: set[int] = set()
    open_ = Inference.__init__

    def opening(inference: Inference, *args: Any) -> None:
        opened.append(inference)
        open_(inference, *args)

    def watched(end: Callable[..., None]) -> Callable[..., None]:
        def ending(inference: Inference, *args: Any) -> None:
            if not inference.is_over or end.__name__ == "answered":
                closed[id(inference)] += 1
            threads.add(threading.get_ident())
            end(inference, *args)

        return ending

    monkeypatch.setattr(Inference, "__init__", opening)
    for name in ("answered", "fail", "cancel"):
        monkeypatch.setattr(Inference, name, watched(getattr(Inference, name)))
    calls = await asyncio.to_thread(shoot, gateway.address, seed)
    codes = Counter(call.code() for call in calls.values())
    assert codes.total() == CALLS
    assert set(codes) <= {
        grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED,
    }  # fmt: skip
    assert min(codes[code] for code in codes) > 0
    for number, call in calls.items():
        if call.code() is grpc.StatusCode.OK:
            answer = np.frombuffer(call.result().raw_output_contents[0], np.int64)
            assert answer.tolist() == [number], "somebody else's answer"
    # Calls that were cancelled early never came here; of the others none is left.
    await gateway.until(lambda: len(closed) == len(opened))
    assert await gateway.queue.wait_empty(TIMEOUT_S) == 0
    assert set(closed.values()) == {1}
    assert {id(inference) for inference in opened} == set(closed)
    assert threads == {threading.get_ident()}, "an inference ended outside the loop"
    assert gateway.counted().total() == len(opened)
    assert gateway.counted()["OK"] >= codes[grpc.StatusCode.OK]
    assert all(entry.dead for entry in gateway.worker.entries)


async def test_calls_are_refused_while_draining(gateway: Gateway, channel: grpc.Channel) -> None:
    waiting = start(channel)
    await gateway.until(lambda: len(gateway.worker.entries) == 1)
    gateway.admission.refuse_new()
    refused = start(channel)
    assert await code_of(refused) is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in refused.details()
    assert trailing(refused)["retry-after"] == "1"
    gateway.queue.fail_all(ShuttingDownError("no time left"))
    assert await code_of(waiting) is grpc.StatusCode.UNAVAILABLE
    assert waiting.details() == "no time left"


async def test_one_caller_has_a_share_of_the_streams_of_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_edge, "MAX_STREAMED_OF_ONE", 2)
    access = RegistryAccess(mode="open", is_closed=False)
    registry = Registry(ModelStore(str(tmp_path)), None, access, lambda *_: False)
    gateway = Gateway(registry)
    await gateway.start()
    own_port = [("grpc.use_local_subchannel_pool", 1)]
    with (
        grpc.insecure_channel(gateway.address) as mine,
        grpc.insecure_channel(gateway.address, own_port) as other,
    ):
        open_calls = [watched(mine) for _ in range(3)]
        refused = await first_over(open_calls)  # whichever arrives last
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the limit of one caller" in refused.details()
        open_calls.remove(refused)
        open_calls.append(watched(other))
        open_calls[0].cancel()
        bad = watched(other, after="x")
        assert await code_of(bad) is grpc.StatusCode.INVALID_ARGUMENT
        assert not any(one.done() for one in open_calls[1:])
        for one in open_calls:
            one.cancel()
    await gateway.edge.stop(0)
    registry.close()


async def first_over(calls: Sequence[Any]) -> Any:
    """Returns the first of some calls that is over."""
    over, loop = asyncio.Queue[Any](), asyncio.get_running_loop()
    for call in calls:
        call.add_done_callback(
            lambda _, call=call: loop.call_soon_threadsafe(over.put_nowait, call)
        )
    async with asyncio.timeout(TIMEOUT_S):
        return await over.get()


def watched(channel: grpc.Channel, after: str = "") -> Any:
    """Starts a stream of events."""
    serialize = registry_pb2.WatchEventsRequest.SerializeToString
    path = "/flambeau.v1.Registry/WatchEvents"
    call = channel.unary_stream(path, serialize, registry_pb2.RegistryEvent.FromString)
    return call(registry_pb2.WatchEventsRequest(after=after), timeout=TIMEOUT_S)
