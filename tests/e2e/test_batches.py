"""Batching settings, for the whole server and for single models."""

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.rest_calls import Reply, infer, infer_path, linear_input
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.onnx_models import batch_rows, linear, publish
from tests.fixtures.servers import FREE_PORTS, ServerProcess, running_server, serving
from tests.fixtures.worker_processes import children_of

ROW = [1.0, 2.0, 3.0, 4.0]
MODELS = ("usual", "fixed", "patient", "unhurried")
MAX_ROWS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs models that return their backend's row count, each with settings of its own."""
    store = str(tmp_path_factory.mktemp("store"))
    golden = {"x": np.zeros((1, 4), np.float32)}
    for model in MODELS:
        publish(store, model, batch_rows(), max_batch_size=MAX_ROWS, golden=golden)
    publish(store, "linear", linear(2), linear(2))
    settings = {
        "fixed": {"preferred_batch_sizes": [4, 8]},
        "patient": {"batch_wait_ms": 400},
        "unhurried": {"batch_wait_ms": 10_000},
        "linear": {"artifact": "onnx-1", "isolate": True},
    }
    with running_server(Path(store), model_settings=settings) as server:
        yield server


def rows_seen(server: ServerProcess, model: str, count: int) -> list[int]:
    """Returns the backend's row counts for a request of so many rows."""
    seen = infer(server, model, linear_input(*[ROW] * count)).outputs()["rows"]
    assert isinstance(seen, list)
    return seen


@pytest.mark.parametrize(
    ("model", "rows", "seen"),
    [
        ("fixed", 1, 4), ("fixed", 3, 4), ("fixed", 4, 4), ("fixed", 5, 8), ("fixed", 8, 8),
        ("fixed", 9, 9), ("fixed", 16, 16), ("usual", 1, 1), ("usual", 3, 3),
    ],
)  # fmt: skip
def test_preferred_sizes_are_what_the_backend_sees(
    server: ServerProcess, model: str, rows: int, seen: int
) -> None:
    before = server.metric("flambeau_batch_size_sum", model=model)
    assert rows_seen(server, model, rows) == [seen] * rows
    after = server.metric("flambeau_batch_size_sum", model=model)
    assert after - before == rows, "rows that nobody sent were counted"


def test_the_first_request_waits_for_company(server: ServerProcess) -> None:
    """Two requests on connections that are open, one right after the other."""
    body = json.dumps({"inputs": [linear_input(ROW)]}).encode()
    connections = [http.client.HTTPConnection(server.http, timeout=30) for _ in range(2)]
    for connection in connections:
        connection.connect()
    begun = time.monotonic()
    for connection in connections:
        connection.request("POST", infer_path("patient"), body)
    answers = []
    for connection in connections:
        reply = connection.getresponse()
        answers.append(Reply(reply.status, reply.headers, reply.read()).outputs())
        connection.close()
    assert answers == [{"rows": [2]}] * 2
    assert time.monotonic() - begun >= 0.4


def test_whom_nobody_joins_is_answered_when_the_wait_is_over(server: ServerProcess) -> None:
    begun = time.monotonic()
    assert rows_seen(server, "patient", 1) == [1]
    assert time.monotonic() - begun >= 0.4


def test_a_full_batch_waits_no_longer(server: ServerProcess) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(rows_seen, server, "unhurried", 1)
        server.wait_for_metric(1, "flambeau_queue_depth", model="unhurried")
        begun = time.monotonic()
        assert len(rows_seen(server, "unhurried", MAX_ROWS)) == MAX_ROWS
        assert len(first.result()) == 1
        assert time.monotonic() - begun < 9, "it waited for more than fits"


def test_a_deadline_ends_the_wait(server: ServerProcess) -> None:
    before = server.metric("flambeau_batch_size_count", model="unhurried")
    reply = infer(server, "unhurried", linear_input(ROW), parameters={"timeout": 500_000})
    assert reply.outputs() == {"rows": [1]}
    assert server.metric("flambeau_batch_size_count", model="unhurried") == before + 1


def test_a_model_has_an_artifact_and_a_process_of_its_own(server: ServerProcess) -> None:
    artifacts = {
        log["model"]: log["artifact"] for log in server.logs() if log["message"] == "version ready"
    }
    assert artifacts == {"linear": "onnx-1", **dict.fromkeys(MODELS, "onnx")}
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children_of(server.pid)]
    assert sum("isolation.worker_process" in command for command in commands) == 1
    assert infer(server, "linear", linear_input(ROW)).outputs() == {"y": [2, 4, 6, 8]}


def test_misspelt_setting_of_a_model_stops_the_start(tmp_path: Path) -> None:
    settings = {"linear": {"instanses": 2}}
    ended = run_flambeau(*serving(tmp_path, *FREE_PORTS, model_settings=settings))
    assert ended.returncode != 0
    assert "instanses" in ended.stderr
    assert "did you mean 'instances'?" in ended.stderr
