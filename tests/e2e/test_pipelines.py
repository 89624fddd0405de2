"""Pipelines over the wire, in both shapes of a server: REST, gRPC, jobs, errors and batches."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import flambeau
from flambeau.client import Client
from flambeau.errors import NotFoundError
from flambeau.publishing.errors import RefusedError
from model_store.store import ModelStore
from tests.e2e.conftest import SHAPES
from tests.e2e.grpc_calls import error_of, outputs, raw_request
from tests.e2e.rest_calls import call, infer, lookup_inputs, post, tensor
from tests.fixtures.onnx_models import linear, publish, slow_lookup
from tests.fixtures.pipelines import (
    READER,
    ROWS,
    TEXT_GRAPH,
    TEXT_SCORES,
    TEXTS,
    publish_graph,
    publish_parts,
    publish_words,
    right,
)
from tests.fixtures.redis_servers import RedisProcess, redis_process
from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import running_gateway, running_worker
from tests.fixtures.triton_messages import GRPCInferenceServiceStub
from training.importing.pipelines.pipeline_source import read_pipeline
from training.importing.pipelines.publication import publish_pipeline

LOOKUPS: dict[str, Any] = {
    "steps": [
        {
            "name": "first",
            "model": "lookup@^1",
            "inputs": {"work": "input.work", "index": "input.index"},
        },
        {
            "name": "second",
            "model": "lookup@1",
            "inputs": {"work": "input.work", "index": "input.index"},
        },
    ],
    "outputs": {"first": "first.value", "second": "second.value"},
}
"""Two steps at the same time, whose latency the request sets; an index above 9 fails."""

TWICE: dict[str, Any] = {
    "steps": [
        {"name": "first", "model": "family@^1", "inputs": {"x": "input.x"}},
        {"name": "second", "model": "family@^1", "inputs": {"x": "first.y"}},
    ],
    "outputs": {"y": "second.y"},
}
"""A model twice, whose exact artifact gives 2 x, and whose default one slightly more."""
OWN_CODE = """
import numpy as np

class Double:
    def infer(self, inputs):
        if inputs["x"].max() > 1000:
            raise ValueError("a number is above 1000")
        return {"x": inputs["x"] * np.float32(2)}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("pipelines")
    publish_parts(str(store), max_batch_size=64)
    publish_graph(str(store))
    publish_words(str(store))
    found = {"scores": np.array(TEXT_SCORES, np.float32)[..., None]}
    publish_graph(str(store), "texts", TEXT_GRAPH, TEXTS, found)
    publish(str(store), "lookup", slow_lookup())
    rows = {"work": np.zeros(2, np.int64), "index": np.array([1, 2])}
    publish_graph(str(store), "lookups", LOOKUPS, rows)
    family = (linear(2.00001), linear(2), linear(2, layers=1))
    publish(str(store), "family", *family, precisions=("int8",))
    publish_graph(str(store), "twice", TWICE, {"x": np.array([[1, 2, 3, 4]], np.float32)})
    (store.parent / f"{store.name}.py").write_text(OWN_CODE)
    own = {"name": "double", "python": f"{store.name}.py:Double", "inputs": {"x": "input.x"}}
    graph = {"steps": [own, *READER["steps"]], "outputs": READER["outputs"]}
    graph["steps"][1] = {**graph["steps"][1], "inputs": {"x": "double.x"}}
    there = ModelStore(str(store))
    publish_pipeline(there, "doubled", read_pipeline(graph, there, store.parent), ROWS)
    return store


@pytest.fixture(scope="module", params=SHAPES)
def server(request: pytest.FixtureRequest, store: Path) -> Iterator[ServerProcess]:
    running = SHAPES[request.param]
    own = {"family": {"keep_artifacts": ["exact"]}}
    with running(store, model_settings=own) as server:
        server.wait_until_read_through()
        yield server


def x_of(rows: Any) -> dict[str, Any]:
    array = np.asarray(rows, np.float32)
    return tensor("x", "FP32", array.shape, array.ravel().tolist())


def test_rest_answers_with_the_outputs_of_all_steps(server: ServerProcess) -> None:
    reply = infer(server, "reader", x_of(ROWS["x"]))
    assert reply.outputs() == {
        "scores": right(ROWS["x"]).ravel().tolist(),
        "found": (ROWS["x"] > 0).ravel().tolist(),
    }
    assert [output["shape"] for output in reply.json()["outputs"]] == [[3, 4, 1], [3, 4]]
    (scores,) = infer(server, "reader", x_of(ROWS["x"]), outputs=[{"name": "scores"}]).outputs()
    assert scores == "scores"


def test_grpc_answers_the_same(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        found = outputs(stub.ModelInfer(raw_request("reader", {"x": ("FP32", ROWS["x"])})))
    np.testing.assert_array_equal(found["scores"], right(ROWS["x"]))
    np.testing.assert_array_equal(found["found"], ROWS["x"] > 0)


def test_its_metadata_are_those_of_a_model(server: ServerProcess) -> None:
    found = call(server, "GET", "/v2/models/reader").json()
    assert found["platform"] == "flambeau_pipeline"
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert [output["name"] for output in found["outputs"]] == ["scores", "found"]
    assert call(server, "GET", "/v2/models/reader/ready").status == 200


def test_an_error_names_the_step(server: ServerProcess) -> None:
    reply = infer(server, "lookups", *lookup_inputs(99))
    assert reply.status == 500
    assert "step '" in reply.error()
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        inputs = {"work": ("INT64", np.array([0])), "index": ("INT64", np.array([99]))}
        code, text = error_of(lambda: stub.ModelInfer(raw_request("lookups", inputs)))
    assert code is grpc.StatusCode.INTERNAL
    assert "step '" in text


def test_a_deadline_holds_for_all_steps(server: ServerProcess) -> None:
    reply = infer(server, "lookups", *lookup_inputs(1, 2000), parameters={"timeout": 1000})
    assert reply.status in (503, 504), reply.body
    assert infer(server, "lookups", *lookup_inputs(1)).status == 200


def test_concurrent_requests_share_the_batches_of_each_step(server: ServerProcess) -> None:
    def batches(model: str) -> tuple[float, float]:
        return tuple(  # type: ignore[return-value]
            server.metric(f"flambeau_batch_size_{what}", model=model, version="1")
            for what in ("count", "sum")
        )

    before = {model: batches(model) for model in ("finder", "scorer")}
    asked = raw_request("reader", {"x": ("FP32", np.array([[1, 2, 3, 4]] * 4, np.float32))})
    with grpc.insecure_channel(server.grpc) as channel:  # the server reads many in one turn
        stub = GRPCInferenceServiceStub(channel)
        for under_way in [stub.ModelInfer.future(asked) for _ in range(200)]:
            under_way.result()
    for model, rows_each in (("finder", 4), ("scorer", 16)):
        count, rows = (after - b for after, b in zip(batches(model), before[model], strict=True))
        assert rows == 200 * rows_each
        assert count < 200, model  # more than one request a batch, on average


def test_a_bad_request_fails_alone(server: ServerProcess) -> None:
    with ThreadPoolExecutor(8) as callers:
        found = list(
            callers.map(
                lambda n: infer(server, "lookups", *lookup_inputs(99 if n % 8 == 0 else 3)).status,
                range(64),
            )
        )
    assert Counter(found) == {200: 56, 500: 8}


def test_a_python_model_is_a_step(server: ServerProcess) -> None:
    texts = [text.decode() for text in TEXTS["text"]]
    reply = infer(server, "texts", tensor("text", "BYTES", [3], texts))
    assert reply.outputs() == {"scores": [score for row in TEXT_SCORES for score in row]}
    reply = infer(server, "texts", tensor("text", "BYTES", [1], ["one two three four five"]))
    assert reply.status == 400
    assert "step 'split'" in reply.error()
    assert "the text has 5 words" in reply.error()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisProcess]:
    with redis_process() as redis:
        yield redis


def test_code_is_a_step(server: ServerProcess) -> None:
    reply = infer(server, "doubled", x_of(ROWS["x"]))
    assert reply.outputs()["scores"] == right(2 * ROWS["x"]).ravel().tolist()
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        found = outputs(stub.ModelInfer(raw_request("doubled", {"x": ("FP32", ROWS["x"])})))
    np.testing.assert_array_equal(found["scores"], right(2 * ROWS["x"]))
    refused = infer(server, "doubled", x_of([[2000, 0, 0, 0]]))
    assert refused.status == 400
    assert refused.error().startswith("step 'double': ")
    assert refused.error().endswith("a number is above 1000")


def test_an_accuracy_holds_for_every_step(server: ServerProcess) -> None:
    row, exact = [1.0, 2.0, 3.0, 4.0], [4.0, 8.0, 12.0, 16.0]
    roughly = infer(server, "twice", x_of([row])).outputs()["y"]
    assert roughly == pytest.approx(exact, rel=1e-4)
    assert roughly != exact
    found = infer(server, "twice", x_of([row]), parameters={"accuracy": "exact"})
    assert found.outputs() == {"y": exact}
    assert infer(server, "twice", x_of([row]), parameters={"accuracy": "fast"}).status == 200
    with Client(server.grpc) as client:
        twice = client.model("twice")
        assert twice.infer(row, accuracy="exact")["y"].tolist() == [exact]
        with pytest.raises(NotFoundError, match="is a pipeline, which has none of its own; leave"):
            twice.infer(row, artifact="onnx")
        with pytest.raises(NotFoundError, match="is a pipeline"):
            client.model("reader").infer(row, artifact="onnx-int8")
    refused = infer(server, "twice", x_of([row]), parameters={"artifact": "onnx"})
    assert (refused.status, "give 'accuracy'" in refused.error()) == (404, True)


class Scorer:
    """A scorer that takes another input."""

    def infer(self, inputs: Any) -> Any:
        """Returns the item itself."""
        return {"score": inputs["other"]}


@pytest.mark.long
def test_a_part_that_would_break_a_pipeline_is_refused_where_it_is_published(
    tmp_path: Path,
) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    options: dict[str, Any] = {"name": "scorer", "to": tmp_path, "progress": False}
    rows = {"other": np.ones((4, 1), np.float32)}
    words = r"It would break these pipelines: reader \(scorer@\^1\)"
    with pytest.raises(RefusedError, match=words):
        flambeau.publish(Scorer, rows, bump="minor", **options)
    assert ModelStore(str(tmp_path)).versions("scorer") == [1]
    assert flambeau.publish(Scorer, rows, **options).semver == "2.0.0"


def test_a_job_runs_a_pipeline(store: Path, redis: RedisProcess) -> None:
    with running_worker(store, redis.url), running_gateway(redis.url) as gateway:
        reply = post(gateway, "/v2/models/reader/jobs", {"inputs": [x_of(ROWS["x"])]})
        assert reply.status == 202, reply.body
        path = reply.headers["location"]
        done = call(gateway, "GET", f"{path}?wait=30s")
        assert done.json()["state"] == "done", done.body
        result = call(gateway, "GET", f"{path}/result")
        assert result.outputs()["scores"] == right(ROWS["x"]).ravel().tolist()


def test_a_killed_worker_costs_no_request(store: Path, redis: RedisProcess) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(running_worker(store, redis.url)) for _ in range(2)]
        gateway = stack.enter_context(running_gateway(redis.url))
        workers[1].expected_code = -signal.SIGKILL
        held: list[int] = []
        inputs = lookup_inputs(3, 300)
        threads = [
            threading.Thread(target=lambda: held.append(infer(gateway, "lookups", *inputs).status))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        workers[1].wait_until_metric(
            lambda rows: rows > 0, "flambeau_batch_size_sum", model="lookup"
        )
        workers[1].process.kill()
        for thread in threads:
            thread.join()
        assert Counter(held) == {200: 16}
