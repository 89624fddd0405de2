"""Concurrent batches: instances of a model, and runs on the device."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.e2e.held_workers import stopped_workers
from tests.e2e.rest_calls import Reply, infer, linear_input, tensor
from tests.fixtures import misbehaving_models
from tests.fixtures.onnx_models import lookup, publish
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.worker_processes import children_of


def index(value: int) -> dict[str, Any]:
    return tensor("index", "INT64", [1], [value])


def send(
    server: ServerProcess, threads: ThreadPoolExecutor, model: str, value: int
) -> "Future[Reply]":
    """Sends a request to a model with suspended workers; returns after its admission."""
    before = server.metric("flambeau_in_flight_requests")
    sent = threads.submit(infer, server, model, index(value))
    server.wait_for_metric(before + 1, "flambeau_in_flight_requests")
    return sent


def test_as_many_requests_run_at_once_as_there_are_instances(tmp_path: Path) -> None:
    """Each in a process of its own, all of which stand still: what does not wait, runs."""
    publish(str(tmp_path), "lookup", lookup(), max_batch_size=1)
    with (
        running_server(tmp_path, instances=2, isolate=True, max_concurrent_runs=8) as server,
        ThreadPoolExecutor(3) as threads,
    ):
        assert len(children_of(server.pid)) == 2
        with stopped_workers(server):
            sent = [send(server, threads, "lookup", value) for value in range(3)]
            server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
        assert [s.result().outputs() for s in sent] == [{"value": [v]} for v in range(3)]


def test_two_instances_in_one_process_run_side_by_side(tmp_path: Path) -> None:
    """Both block for good, so that neither waits for the end of the other."""
    misbehaving_models.publish(str(tmp_path), "blocking", misbehaving_models.blocking())
    stuck = linear_input([misbehaving_models.TRIGGER] * misbehaving_models.WIDTH)
    with (
        running_server(
            tmp_path, instances=2, max_concurrent_runs=2, execution_timeout_s=2
        ) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        sent = []
        for running in (1, 2):
            sent.append(threads.submit(infer, server, "blocking", stuck))
            server.wait_for_metric(running, "flambeau_in_flight_requests")
            server.wait_for_metric(0, "flambeau_queue_depth", model="blocking")
        assert not any(reply.done() for reply in sent), "they did not run side by side"
        assert [reply.result().status for reply in sent] == [500, 500]
        assert server.metric("flambeau_worker_restarts_total", reason="blocked") == 2


def test_models_share_the_runs_there_are(tmp_path: Path) -> None:
    """The device runs one of three models, and perhaps one much shorter batch beside it."""
    models = ("first", "second", "third")
    for model in models:
        publish(str(tmp_path), model, lookup())
    with (
        running_server(tmp_path, isolate=True, max_concurrent_runs=1) as server,
        ThreadPoolExecutor(3) as threads,
    ):
        server.wait_until_read_through()
        with stopped_workers(server):
            running = send(server, threads, "first", 1)
            server.wait_for_metric(0, "flambeau_queue_depth", model="first")
            others = [send(server, threads, model, 2) for model in models[1:]]
            server.wait_until_metric(lambda waiting: waiting >= 1, "flambeau_queue_depth")
        assert running.result().outputs() == {"value": [1]}
        assert [reply.result().outputs() for reply in others] == [{"value": [2]}] * 2
