"""Gateways and workers as separate processes: the effect of one leaving or joining."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from model_store.store import ModelStore
from tests.e2e.grpc_calls import linear_request
from tests.e2e.rest_calls import call, infer, linear_input, lookup_inputs, post
from tests.fixtures import misbehaving_models
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.misbehaving_models import TRIGGER, WIDTH
from tests.fixtures.onnx_models import linear, publish, slow_lookup
from tests.fixtures.redis_servers import RedisProcess, redis_process, until_true
from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import Part, running_gateway, running_worker
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW = [1.0, 2.0, 3.0, 4.0]
WORK = 20_000
"""Work for `slow_lookup` that takes about 200 ms."""


@pytest.fixture
def redis() -> Iterator[RedisProcess]:
    with redis_process() as redis:
        yield redis


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    store = ModelStore(str(tmp_path))
    for scale in (1, 2):
        publish(store.url, "linear", linear(scale))
    store.promote("linear", 1)
    publish(store.url, "lookup", slow_lookup())
    return store


@contextmanager
def load(server: ServerProcess, clients: int = 4) -> Iterator[list[tuple[int, str]]]:
    """Runs clients with one request at a time until the block ends; yields their responses."""
    found: list[tuple[int, str]] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            reply = infer(server, "linear", linear_input(ROW))
            if reply.status == 200:
                version = int(reply.json()["model_version"])
                right = reply.outputs() == {"y": [version * x for x in ROW]}
                found.append((200, str(version) if right else "wrong"))
            else:
                found.append((reply.status, reply.error()))

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join()


def worker_is(worker: Part, wanted: str) -> bool:
    """Returns True if a worker's metrics port reports `live` or `ready`."""
    url = f"http://127.0.0.1:{worker.metrics_port}/v2/health/{wanted}"
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False
    return True


def wait_until_ready_is(worker: Part, wanted: bool) -> None:
    until_true(lambda: worker_is(worker, "ready") is wanted)


def grown(found: list[tuple[int, str]], by: int) -> None:
    """Waits for so many more responses."""
    wanted = len(found) + by
    until_true(lambda: len(found) >= wanted, every_s=0.01)


def running_fleet(stack: ExitStack, store: ModelStore, queue: str, workers: int) -> list[Part]:
    """Runs workers that load only pointed-to versions, or the newest without a pointer."""
    running = [running_worker(Path(store.url), queue, newest_versions=0) for _ in range(workers)]
    return [stack.enter_context(worker) for worker in running]


def test_a_killed_worker_costs_no_request(store: ModelStore, redis: RedisProcess) -> None:
    with ExitStack() as stack:
        stays, dies = running_fleet(stack, store, redis.url, 2)
        gateway = stack.enter_context(running_gateway(redis.url))
        dies.expected_code = -signal.SIGKILL
        held: list[int] = []
        inputs = lookup_inputs(3, WORK)
        threads = [
            threading.Thread(target=lambda: held.append(infer(gateway, "lookup", *inputs).status))
            for _ in range(16)
        ]
        with load(gateway) as found:
            for thread in threads:
                thread.start()
            dies.wait_until_metric(lambda held_now: held_now > 0, "flambeau_queue_depth")
            dies.process.kill()
            grown(found, 50)
            for thread in threads:
                thread.join()
        assert Counter(held) == {200: 16}
        assert {status for status, _ in found} == {200}
        assert stays.process.poll() is None
        # Reported by either process; an alert sees the sum over processes.
        assert sum(one.metric("flambeau_lost_workers_total") for one in (gateway, stays)) == 1
        assert gateway.metric("flambeau_fleet_workers") == 1


def test_a_worker_that_is_stopped_hands_back_and_costs_no_request(
    store: ModelStore, redis: RedisProcess
) -> None:
    with ExitStack() as stack:
        running_fleet(stack, store, redis.url, 1)
        gateway = stack.enter_context(running_gateway(redis.url))
        with load(gateway) as found:
            with running_worker(Path(store.url), redis.url):
                grown(found, 50)
            grown(found, 50)  # the first one is alone again
        assert Counter(found) == {(200, "1"): len(found)}


def test_a_gateway_that_is_stopped_answers_what_it_accepted(
    store: ModelStore, redis: RedisProcess
) -> None:
    with ExitStack() as stack:
        running_fleet(stack, store, redis.url, 1)
        with running_gateway(redis.url) as gateway:
            held: list[int] = []
            inputs = lookup_inputs(3, WORK)
            thread = threading.Thread(
                target=lambda: held.append(infer(gateway, "lookup", *inputs).status)
            )
            thread.start()
            gateway.wait_for_metric(1, "flambeau_in_flight_requests")
        thread.join()
        assert held == [200]


def test_a_moved_pointer_costs_no_request(store: ModelStore, redis: RedisProcess) -> None:
    with ExitStack() as stack:
        workers = running_fleet(stack, store, redis.url, 2)
        gateway = stack.enter_context(running_gateway(redis.url))
        with load(gateway) as found:
            grown(found, 50)
            store.promote("linear", 2)
            gateway.wait_for_log(message="version live", model="linear", version=2)
            grown(found, 50)
            for worker in workers:
                worker.wait_for_log(message="version unloaded", model="linear", version=1)
            grown(found, 50)
        assert {status for status, _ in found} == {200}
        assert found[0][1] == "1"
        assert found[-1][1] == "2"


def test_a_redis_that_dies_is_told_at_once_and_all_heals_when_it_returns(
    store: ModelStore, redis: RedisProcess
) -> None:
    with ExitStack() as stack:
        (worker,) = running_fleet(stack, store, redis.url, 1)
        wait_until_ready_is(worker, True)
        gateway = stack.enter_context(running_gateway(redis.url))
        redis.kill()
        gateway.wait_for_log(message="the queue is unreachable")
        reply = infer(gateway, "linear", linear_input(ROW))
        assert reply.status == 503
        assert "unreachable" in reply.error()
        assert reply.headers["retry-after"]
        assert call(gateway, "GET", "/v2/health/live").status == 200
        wait_until_ready_is(worker, False)
        assert worker_is(worker, "live")
        redis.start()
        wait_until_ready_is(worker, True)
        gateway.wait_for_log(message="the queue is reachable")
        until_true(lambda: infer(gateway, "linear", linear_input(ROW)).status == 200)


def test_a_model_nobody_serves_any_more_is_unavailable_and_not_unknown(
    store: ModelStore, redis: RedisProcess
) -> None:
    with ExitStack() as stack:
        with running_worker(Path(store.url), redis.url):
            gateway = stack.enter_context(running_gateway(redis.url))
            assert infer(gateway, "linear", linear_input(ROW)).status == 200
        give_up_at = time.monotonic() + 30
        while (reply := infer(gateway, "linear", linear_input(ROW))).status == 200:
            assert time.monotonic() < give_up_at
        assert reply.status == 503
        with running_worker(Path(store.url), redis.url):
            until_true(lambda: infer(gateway, "linear", linear_input(ROW)).status == 200)


def test_whatever_asks_for_work_while_no_worker_is_there_is_counted(
    store: ModelStore, redis: RedisProcess
) -> None:
    """By that an autoscaler wakes the first worker (k8s/components/keda)."""
    with ExitStack() as stack:
        with running_worker(Path(store.url), redis.url):
            gateway = stack.enter_context(running_gateway(redis.url))
        job = {"inputs": [linear_input(ROW)]}
        gateway.wait_until_metric(lambda workers: workers == 0, "flambeau_fleet_workers")
        assert refused(gateway) == 0
        assert call(gateway, "GET", "/v2/models/linear/ready").status == 503
        assert infer(gateway, "unheard-of", linear_input(ROW)).status == 404
        assert refused(gateway) == 0, "who only watches, or errs, wakes nobody"
        asks: tuple[Callable[[], bool], ...] = (
            lambda: infer(gateway, "linear", linear_input(ROW)).status == 503,
            lambda: _infer_over_grpc(gateway) is StatusCode.UNAVAILABLE,
            lambda: post(gateway, "/v2/models/linear/jobs", job).status == 503,
            lambda: _python("-c", SUBMIT, gateway.grpc) == "refused\n",
            # Clients, ours included, read the metadata before the first inference.
            lambda: call(gateway, "GET", "/v2/models/linear").status == 503,
            lambda: "not ready" in _python("-c", METADATA, gateway.grpc),
        )
        for ask in asks:
            before = refused(gateway)
            assert ask()
            assert refused(gateway) > before


SUBMIT = f"""
import sys
import numpy as np
from flambeau.errors import UnavailableError
from flambeau.jobs import JobClient

with JobClient(sys.argv[1]) as jobs:
    try:
        jobs.submit("linear", {{"x": np.array([{ROW}], np.float32)}})
    except UnavailableError:
        print("refused")
"""
"""A user's script; runs as a process of its own."""
METADATA = """
import sys
from flambeau.client import Client
from flambeau.errors import UnavailableError

with Client(sys.argv[1]) as client:
    try:
        client.metadata("linear")
    except UnavailableError as error:
        print(error)
"""


def _infer_over_grpc(gateway: ServerProcess) -> StatusCode:
    with grpc.insecure_channel(gateway.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        code: StatusCode = stub.ModelInfer.future(linear_request(ROW)).code()
        return code


def refused(gateway: ServerProcess) -> float:
    """Returns the series that wakes the first worker; it exists from the start, because its first
    rise would otherwise be invisible."""
    (value,) = [
        sample.value
        for sample in gateway.metric_families()["flambeau_refusals"].samples
        if sample.labels["reason"] == "ModelNotReadyError"
    ]
    return value


@pytest.mark.long
def test_a_request_that_ends_two_workers_ends_no_third(tmp_path: Path, redis: RedisProcess) -> None:
    misbehaving_models.publish(str(tmp_path), "crashing", misbehaving_models.crashing())
    good, poison = [1.0] * WIDTH, [TRIGGER] * WIDTH
    with ExitStack() as stack:
        workers = [stack.enter_context(running_worker(tmp_path, redis.url)) for _ in range(3)]
        gateway = stack.enter_context(running_gateway(redis.url))
        reply = infer(gateway, "crashing", linear_input(poison))
        assert reply.status == 500
        assert "dead letters" in reply.error()
        died = [worker for worker in workers if worker.process.poll() is not None]
        assert len(died) == 2
        for worker in died:
            worker.expected_code = -signal.SIGSEGV
        assert infer(gateway, "crashing", linear_input(good)).outputs() == {"y": [2.0] * WIDTH}
        (letter,) = _dead(redis, "list").splitlines()[1:]
        assert letter.split()[1:3] == ["crashing", "1"]
        (lives,) = [worker for worker in workers if worker not in died]
        assert lives.metric("flambeau_dead_letters_total", model="crashing", version="1") == 1


def test_dead_letters_are_listed_shown_retried_and_dropped(
    redis: RedisProcess, tmp_path: Path
) -> None:
    asyncio.run(_bury(redis, "1", "2"))
    listed = _dead(redis, "list").splitlines()
    assert listed[0].split() == ["ID", "MODEL", "VERSION", "DIED", "ERROR"]
    first, second = (line.split()[0] for line in listed[1:])
    shown = _dead(redis, "show", first)
    assert "request" in shown
    assert "input x" in shown
    written = ("--audit-log", str(tmp_path / "audit.jsonl"))
    retried = json.loads(_dead(redis, "retry", first, "--json", *written))
    assert retried == {"id": first, "state": "queued again"}
    assert _dead(redis, "drop", second, *written) == f"{second} is gone\n"
    assert "there is no dead letter" in _dead(redis, "drop", second, *written, code=1)
    acts = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(x["act"], x["target"], x["outcome"]) for x in acts] == [
        ("retry dead letter", first, "done"),
        ("drop dead letter", second, "done"),
        ("drop dead letter", second, "failed"),
    ]
    assert _dead(redis, "list") == "no dead letters\n"
    assert "there is no dead letter" in _dead(redis, "show", first, code=1)


async def _bury(redis: RedisProcess, *names: str) -> None:
    """Moves requests to the dead letters, as if they had crashed their workers."""
    from services.queueing.redis_streams.keys import LaneKeys
    from services.queueing.redis_streams.wire import encode_request
    from tests.fixtures.queue_ends import LANE, request

    keys = LaneKeys(LANE)
    for name in names:
        await redis.client.xadd(
            keys.dead,
            {"stream": keys.streams[4], "error": "it ended two workers; look at it",
             "deadline": "0", "address": "gateway 7", "payload": encode_request(request(name))},
        )  # fmt: skip
    await redis.client.aclose()


def _dead(redis: RedisProcess, *arguments: str, code: int = 0) -> str:
    """Returns the output of `flambeau queue dead`."""
    done = run_flambeau("queue", "dead", *arguments, f"--queue={redis.url}")
    assert done.returncode == code, done.stderr
    return done.stdout or done.stderr


def _python(*arguments: str, code: int = 0) -> str:
    """Returns the output of a separate Python process."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout or done.stderr
