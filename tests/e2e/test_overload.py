"""Every limit on queued work: immediate refusal, named, counted, and recovery."""

import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from flambeau.client import Client
from tests.e2e.grpc_calls import TIMEOUT_S, lookup_request, outputs
from tests.e2e.rest_calls import Reply, infer, infer_path, lookup_inputs
from tests.fixtures.onnx_models import publish, slow_lookup
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

LONG = 100_000
"""Matrix products that keep a worker busy for about a second."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for model in ("lookup", "other"):
        publish(str(tmp_path), model, slow_lookup())
    return tmp_path


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def hold(
    server: ServerProcess, threads: ThreadPoolExecutor, model: str = "lookup"
) -> "Future[Reply]":
    """Sends a request that keeps the worker of a model busy; returns when it runs."""
    before = server.metric("flambeau_in_flight_requests")
    held = threads.submit(infer, server, model, *lookup_inputs(1, work=LONG))
    server.wait_for_metric(before + 1, "flambeau_in_flight_requests")
    server.wait_for_metric(0, "flambeau_queue_depth", model=model)
    return held


def test_full_queue_over_rest(store: Path, threads: ThreadPoolExecutor) -> None:
    with running_server(store, max_queue_depth=1) as server:
        held = hold(server, threads)
        waiting = threads.submit(infer, server, "lookup", *lookup_inputs(2))
        server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
        refused = infer(server, "lookup", *lookup_inputs(3), headers={"x-request-id": "one"})
        assert not held.done(), "the queue was never full; give it more work"
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-request-id"] == "one"
        assert "the queue of model 'lookup' version 1 holds 1 requests" in refused.error()
        assert infer(server, "other", *lookup_inputs(4)).outputs() == {"value": [4]}
        assert held.result().outputs() == {"value": [1]}
        assert waiting.result().outputs() == {"value": [2]}
        assert infer(server, "lookup", *lookup_inputs(3)).outputs() == {"value": [3]}
        assert server.metric("flambeau_refusals_total", reason="QueueFullError") == 1


def wait_until_kept(server: ServerProcess) -> None:
    """Polls until the second artifact answers: it is loaded after the server is ready."""
    deadline = time.monotonic() + TIMEOUT_S
    wanted = {"artifact": "onnx-1"}
    while infer(server, "lookup", *lookup_inputs(1), parameters=wanted).status != 200:
        assert time.monotonic() < deadline, "the artifact onnx-1 was never loaded"
        time.sleep(0.05)


def test_overload_is_answered_by_a_faster_artifact_that_is_named(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    work = np.full(8, 5000, np.int64)  # at load, the first artifact is measured as the slower one
    golden = {"work": work, "index": np.arange(8, dtype=np.int64)}
    publish(str(tmp_path), "lookup", slow_lookup(), slow_lookup(width=8), golden=golden)
    settings = {"artifact": "onnx", "keep_artifacts": ["all"], "when_overloaded": "degrade"}
    with running_server(tmp_path, max_queue_depth=1, **settings) as server:
        wait_until_kept(server)
        held = hold(server, threads)
        waiting = threads.submit(infer, server, "lookup", *lookup_inputs(2))
        server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
        degraded = infer(server, "lookup", *lookup_inputs(3))
        strict = infer(server, "lookup", *lookup_inputs(4), parameters={"artifact": "onnx"})
        assert not held.done(), "the queue was never full; give it more work"
        assert degraded.outputs() == {"value": [3]}
        assert degraded.json()["parameters"] == {"artifact": "onnx-1", "degraded": True}
        assert strict.status == 503, "who names an artifact gets that one or none"
        for reply, value in ((held.result(), 1), (waiting.result(), 2)):
            assert reply.outputs() == {"value": [value]}
            assert "parameters" not in reply.json()
        assert server.metric("flambeau_degraded_requests_total", model="lookup") == 1


def test_full_queue_over_grpc(store: Path) -> None:
    """A burst: some are answered, rightly, and all others are refused."""
    with running_server(store, max_queue_depth=1) as server:
        with grpc.insecure_channel(server.grpc) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            calls = [stub.ModelInfer.future(lookup_request(n, work=20_000)) for n in range(10)]
            codes: Counter[StatusCode] = Counter()
            for number, call in enumerate(calls):
                codes[call.code()] += 1
                if call.code() is StatusCode.OK:
                    assert outputs(call.result(TIMEOUT_S))["value"].tolist() == [number]
                else:
                    assert "the queue of model 'lookup' version 1 holds 1" in call.details()
        assert set(codes) == {StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED}
        refused = server.metric("flambeau_refusals_total", reason="QueueFullError")
        assert refused == codes[StatusCode.RESOURCE_EXHAUSTED]


def test_too_many_in_flight(store: Path, threads: ThreadPoolExecutor) -> None:
    """The limit of the whole gateway: a model that is idle is out of reach too."""
    with running_server(store, max_in_flight_requests=1) as server:
        held = hold(server, threads)
        refused = infer(server, "other", *lookup_inputs(2))
        assert not held.done(), "nothing was in flight; give it more work"
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "1 requests are in flight here, the limit" in refused.error()
        assert held.result().outputs() == {"value": [1]}
        assert infer(server, "other", *lookup_inputs(2)).outputs() == {"value": [2]}
        assert server.metric("flambeau_refusals_total", reason="TooManyInFlightError") == 1


def test_too_many_grpc_calls(store: Path) -> None:
    with (
        running_server(store, max_in_flight_requests=1) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub: Any = GRPCInferenceServiceStub(channel)
        held = stub.ModelInfer.future(lookup_request(1, work=LONG))
        server.wait_for_metric(1, "flambeau_in_flight_requests")
        refused = stub.ModelInfer.future(lookup_request(2))
        assert refused.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "1 requests are in flight here, the limit" in refused.details()
        assert stub.ServerLive(pb.ServerLiveRequest()).live, "a busy server is alive"
        assert not held.done(), "nothing was running; give it more work"
        assert server.metric("flambeau_refusals_total", reason="TooManyInFlightError") == 1
        assert outputs(held.result(TIMEOUT_S))["value"].tolist() == [1]
        assert outputs(stub.ModelInfer(lookup_request(4)))["value"].tolist() == [4]


def test_the_client_returns_when_the_server_says_so(
    store: Path, threads: ThreadPoolExecutor
) -> None:
    """A refused call of the client is answered once there is room, without an error."""
    with (
        running_server(store, max_in_flight_requests=1) as server,
        Client(server.grpc, retries=20) as client,
    ):
        lookup = client.model("lookup")
        held = hold(server, threads)
        assert lookup(work=0, index=2).tolist() == [2]
        assert held.result().outputs() == {"value": [1]}
        assert server.metric("flambeau_refusals_total", reason="TooManyInFlightError") >= 1


def test_request_timeout(store: Path, threads: ThreadPoolExecutor) -> None:
    """The server's own limit binds whoever names none, over both protocols."""
    with running_server(store, request_timeout_s=0.2) as server:
        held = hold(server, threads)
        waiting = threads.submit(infer, server, "lookup", *lookup_inputs(2))
        with grpc.insecure_channel(server.grpc) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            late = stub.ModelInfer.future(lookup_request(3), timeout=TIMEOUT_S)
            assert late.code() is StatusCode.DEADLINE_EXCEEDED
            assert "reached its deadline" in late.details()
        for reply in (held.result(), waiting.result()):
            assert reply.status == 504
            assert "reached its deadline" in reply.error()
            assert reply.headers["retry-after"] is None
        server.wait_for_metric(1, "flambeau_batch_size_count", model="lookup")
        assert infer(server, "lookup", *lookup_inputs(4)).outputs() == {"value": [4]}
        assert server.metric("flambeau_batch_size_sum", model="lookup") == 2, "late requests ran"


def test_rest_caller_that_hangs_up_is_dropped_before_the_backend(
    store: Path, threads: ThreadPoolExecutor
) -> None:
    with running_server(store) as server:
        held = hold(server, threads)
        body = json.dumps({"id": "gone", "inputs": lookup_inputs(2)})
        gone = http.client.HTTPConnection(server.http)
        gone.request("POST", infer_path("lookup"), body)
        server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
        gone.close()
        assert server.wait_for_log(request_id="gone")["code"] == "499"
        assert not held.done(), "nothing was running; give it more work"
        assert held.result().outputs() == {"value": [1]}
        assert infer(server, "lookup", *lookup_inputs(3)).outputs() == {"value": [3]}
        assert server.metric("flambeau_batch_size_sum", model="lookup") == 2, "its request ran"
