"""Gateways and workers that cannot reach Redis, or each other, when they start."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.gateway.server import NO_WORKERS
from services.settings import command_line
from tests.fixtures.command_forker import ForkedCommand
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import redis_process
from tests.fixtures.redis_setups import free_port
from tests.fixtures.servers import Log, ServerProcess
from tests.fixtures.split_servers import running_worker

MESSAGE = "the queue is unreachable"


@contextmanager
def started(module: str, **settings: object) -> Iterator[ServerProcess]:
    """Runs a process that may never become ready."""
    process = ServerProcess(ForkedCommand(module, command_line(settings)))
    try:
        yield process
        process.ask_to_stop()
        assert process.wait() == 0
    finally:
        process.process.kill()
        process.wait()


def why_not_ready(port: int) -> str:
    """Returns the reason reported by a process that is not ready."""
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=30)
    with found.value as answer:
        assert answer.code == 503
        return answer.read().decode()


def complaints(process: ServerProcess) -> list[Log]:
    return [line for line in process.logs() if line["level"] in ("warning", "error")]


def test_a_gateway_without_redis_says_where_it_looks_for_it() -> None:
    queue, port = f"redis://127.0.0.1:{free_port()}", free_port()
    ports = {"http_port": port, "grpc_port": 0, "metrics_port": 0}
    with started("services.gateway", queue=queue, **ports) as gateway:
        line = gateway.wait_for_log(message=MESSAGE)
        assert queue in line["reason"]
        assert "--queue" in line["reason"]
        said = why_not_ready(port)
        assert queue in said
        assert "--queue" in said
    assert len(complaints(gateway)) == 1


def test_gateway_without_workers_says_that_they_are_missing(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(1))
    port = free_port()
    ports = {"http_port": port, "grpc_port": 0, "metrics_port": 0}
    with redis_process() as redis, started("services.gateway", queue=redis.url, **ports) as gateway:
        assert gateway.wait_for_log(message="not ready yet")["reason"] == NO_WORKERS
        assert NO_WORKERS in why_not_ready(port)
        with running_worker(tmp_path, redis.url):
            gateway.wait_for_log(message="ready")
    assert len(complaints(gateway)) == 1


def test_a_worker_without_redis_says_so_once(tmp_path: Path) -> None:
    queue, port = f"redis://127.0.0.1:{free_port()}", free_port()
    publish(str(tmp_path), "linear", linear(1))
    with started(
        "services.inference", queue=queue, store=str(tmp_path), metrics_port=port,
        choose_artifact_budget_s=0,
    ) as worker:  # fmt: skip
        line = worker.wait_for_log(message=MESSAGE)
        assert queue in line["reason"]
        assert "--queue" in line["reason"]
        worker.wait_for_log(message="ready")  # its lane asks Redis five times a second
        assert queue in why_not_ready(port)
    assert len(complaints(worker)) == 1
