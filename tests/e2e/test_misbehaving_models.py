"""Models that raise, lose rows, return NaN, block or crash: only their own requests fail.

`x` is doubled; a row with `TRIGGER` in it triggers the misbehaviour.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.grpc_calls import error_of, raw_request
from tests.e2e.held_workers import held_worker, stopped_workers
from tests.e2e.rest_calls import Reply, infer, linear_input
from tests.fixtures import misbehaving_models
from tests.fixtures.misbehaving_models import SIGNATURE, TRIGGER, WIDTH
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import TritonClient
from tests.fixtures.triton_messages import GRPCInferenceServiceStub
from tests.fixtures.worker_processes import children_of, wait_until_ended

EXECUTION_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs all in one process; batches of `raising` and `losing` wait until they are full."""
    store = str(tmp_path_factory.mktemp("store"))
    misbehaving_models.publish(store, "raising", misbehaving_models.raising())
    misbehaving_models.publish(store, "losing", misbehaving_models.losing_rows())
    misbehaving_models.publish(store, "nan", misbehaving_models.not_a_number())
    misbehaving_models.publish(store, "blocking", misbehaving_models.blocking())
    settings = {
        "raising": {"batch_wait_ms": 10_000},
        "losing": {"batch_wait_ms": 10_000},
        "blocking": {"execution_timeout_s": EXECUTION_TIMEOUT_S},
    }
    with running_server(Path(store), model_settings=settings) as server:
        yield server


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def ask(server: ServerProcess, model: str, *values: float, **fields: Any) -> Reply:
    """Sends a request with one row for each value."""
    return infer(server, model, linear_input(*([value] * WIDTH for value in values)), **fields)


def infer_over_grpc(server: ServerProcess, request: Any) -> Any:
    """Returns the response to a request."""
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        return stub.ModelInfer(request)


def is_doubled(reply: Reply, *values: float) -> bool:
    return bool(reply.outputs() == {"y": [2 * value for value in values for _ in range(WIDTH)]})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("raising", "failed on this input: "),
        ("losing", "returned output 'y' of shape [0, 4] for a batch of 1 rows"),
    ],
)
def test_only_the_request_that_sets_it_off_fails(
    server: ServerProcess, threads: ThreadPoolExecutor, model: str, reason: str
) -> None:
    """They share a batch, which waits for the last of them to fill it."""
    answers: list[Future[Reply]] = []
    for value in (1.0, TRIGGER, 2.0):
        answers.append(threads.submit(ask, server, model, value, id=f"{model} {value}"))
        server.wait_for_metric(len(answers), "flambeau_queue_depth", model=model)
    rest = [3.0] * (SIGNATURE.max_batch_size - len(answers))
    assert is_doubled(ask(server, model, *rest), *rest)
    good, bad, fine = (answer.result() for answer in answers)
    assert is_doubled(good, 1.0)
    assert is_doubled(fine, 2.0)
    assert bad.status == 500
    assert bad.headers["retry-after"] is None
    assert f"model '{model}' version 1" in bad.error()
    assert reason in bad.error()
    server.wait_for_log(message="batch failed; running its requests one by one", model=model)
    server.wait_for_log(message="backend failed", request_id=f"{model} {TRIGGER}")


@pytest.mark.long
def test_a_caller_is_told_one_line_and_the_log_has_the_traceback(tmp_path: Path) -> None:
    data = misbehaving_models.raising_with_a_traceback()
    for model in ("scripted", "apart"):
        misbehaving_models.publish(str(tmp_path), model, data)
    with running_server(tmp_path, model_settings={"apart": {"isolate": True}}) as server:
        for model in ("scripted", "apart"):
            reply = ask(server, model, TRIGGER, id=model)
            assert reply.status == 500
            assert reply.error() == (
                f"model '{model}' version 1 failed on this input: "
                "RuntimeError: index out of range in self"
            )
            rows = {"x": ("FP32", np.full((1, WIDTH), TRIGGER, np.float32))}
            assert error_of(partial(infer_over_grpc, server, raw_request(model, rows))) == (
                grpc.StatusCode.INTERNAL,
                reply.error(),
            )
            line = server.wait_for_log(message="backend failed", request_id=model)
            assert "torch.embedding(x, torch.tensor([1000]))" in str(line)


def test_nan_is_an_answer(server: ServerProcess) -> None:
    x = np.array([[1, TRIGGER, 2, 3]], np.float32)
    for kind, address in (("http", server.http), ("grpc", server.grpc)):
        with TritonClient(kind, address) as client:
            y = client.infer("nan", {"x": x}).outputs["y"]
        assert np.array_equal(y, [[2, np.nan, 4, 6]], equal_nan=True)
    reply = infer(server, "nan", linear_input([1, TRIGGER, 2, 3]))
    assert b'"data":[2.0,NaN,4.0,6.0]' in reply.body
    assert is_doubled(ask(server, "nan", 5.0), 5.0)


def test_a_model_that_blocks_is_given_up_and_answers_again(
    server: ServerProcess, threads: ThreadPoolExecutor
) -> None:
    stuck = threads.submit(ask, server, "blocking", TRIGGER)
    server.wait_for_metric(1, "flambeau_in_flight_requests")
    server.wait_for_metric(0, "flambeau_queue_depth", model="blocking")
    waiting = threads.submit(ask, server, "blocking", 1.0)
    server.wait_for_metric(1, "flambeau_queue_depth", model="blocking")
    assert is_doubled(ask(server, "nan", 2.0), 2.0), "another model is harmed"
    assert not stuck.done(), "it never blocked"
    assert stuck.result().status == 500
    assert stuck.result().error() == (
        "model 'blocking' version 1 did not finish within 1 s (execution_timeout_s); its worker "
        "was restarted"
    )
    assert is_doubled(waiting.result(), 1.0), "who waited for it is harmed"
    restarts = "flambeau_worker_restarts_total"
    assert server.metric(restarts, model="blocking", version="1", reason="blocked") == 1
    assert server.metric(restarts) == 1
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        rows = {"x": ("FP32", np.full((1, WIDTH), TRIGGER, np.float32))}
        code, details = error_of(lambda: stub.ModelInfer(raw_request("blocking", rows)))
    assert code is grpc.StatusCode.INTERNAL
    assert "did not finish within 1 s" in details
    assert is_doubled(ask(server, "blocking", 3.0), 3.0)


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs each model in a process of its own; one of them crashes, one blocks."""
    store = str(tmp_path_factory.mktemp("store"))
    misbehaving_models.publish(store, "crashing", misbehaving_models.crashing())
    misbehaving_models.publish(store, "blocking", misbehaving_models.blocking())
    misbehaving_models.publish(store, "steady", misbehaving_models.raising())
    settings = {"blocking": {"execution_timeout_s": EXECUTION_TIMEOUT_S}}
    with running_server(Path(store), isolate=True, model_settings=settings) as server:
        yield server


def test_a_crash_costs_only_the_request_that_causes_it(
    isolated: ServerProcess, threads: ThreadPoolExecutor
) -> None:
    """Its batch-mates are run again on a new process; so is it, and crashes that one too."""
    before = children_of(isolated.pid)
    with grpc.insecure_channel(isolated.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        rows = {"x": ("FP32", np.full((1, WIDTH), TRIGGER, np.float32))}
        with held_worker(isolated, "crashing", linear_input([0.0] * WIDTH)):
            good = threads.submit(ask, isolated, "crashing", 1.0)
            isolated.wait_for_metric(1, "flambeau_queue_depth", model="crashing")
            bad = stub.ModelInfer.future(raw_request("crashing", rows), timeout=60)
            isolated.wait_for_metric(2, "flambeau_queue_depth", model="crashing")
            fine = threads.submit(ask, isolated, "crashing", 2.0)
            isolated.wait_for_metric(3, "flambeau_queue_depth", model="crashing")
        isolated.wait_for_log(message="worker process died; starting another", model="crashing")
        assert is_doubled(ask(isolated, "steady", 3.0), 3.0), "another model is harmed"
        assert not bad.done(), "it was not tried again"
        code, details = error_of(bad.result)
    assert code is grpc.StatusCode.INTERNAL  # no retry helps
    assert details == "model 'crashing' version 1 ended its process on this input (SIGSEGV)"
    assert is_doubled(good.result(), 1.0)
    assert is_doubled(fine.result(), 2.0)
    restarts = "flambeau_worker_restarts_total"
    isolated.wait_for_metric(2, restarts, model="crashing", version="1", reason="died")
    assert isolated.metric(restarts, model="steady") == 0
    assert len(children_of(isolated.pid)) == len(before)
    assert len(before & children_of(isolated.pid)) == len(before) - 1
    assert is_doubled(ask(isolated, "crashing", 4.0), 4.0)


def test_a_process_that_blocks_is_ended_and_replaced(isolated: ServerProcess) -> None:
    before = children_of(isolated.pid)
    stuck = ask(isolated, "blocking", TRIGGER)
    assert stuck.status == 500
    assert "did not finish within 1 s (execution_timeout_s)" in stuck.error()
    assert is_doubled(ask(isolated, "blocking", 1.0), 1.0)
    assert isolated.metric("flambeau_worker_restarts_total", model="blocking") == 1
    (ended,) = before - children_of(isolated.pid)
    assert wait_until_ended(ended)


def test_requests_of_a_killed_process_are_answered_by_the_next(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    misbehaving_models.publish(str(tmp_path), "steady", misbehaving_models.raising())
    with running_server(tmp_path, isolate=True) as server:
        (worker,) = children_of(server.pid)
        with stopped_workers(server):
            answers = []
            for value in range(3):
                answers.append(threads.submit(ask, server, "steady", float(value)))
                server.wait_for_metric(value + 1, "flambeau_in_flight_requests")
            server.wait_for_metric(2, "flambeau_queue_depth", model="steady")
            os.kill(worker, signal.SIGKILL)
            for value, answer in enumerate(answers):
                assert is_doubled(answer.result(), float(value))
        server.wait_for_metric(1, "flambeau_worker_restarts_total", model="steady", reason="died")
        assert worker not in children_of(server.pid)
