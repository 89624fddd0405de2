"""Readiness means that all configured models are served, over every endpoint."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from model_store.store import ModelStore
from tests.e2e.rest_calls import call, infer, linear_input
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import RedisProcess, redis_process
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.split_servers import running_gateway, running_worker
from tests.fixtures.triton_messages import pb

ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisProcess]:
    with redis_process() as redis:
        yield redis


def break_version(store: Path, model: str, version: int) -> None:
    """Breaks the digest of a version, so that it is refused."""
    path = store / model / str(version) / "model.0.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def answers(server: ServerProcess) -> tuple[int, str]:
    """Returns status and reason of `/v2/health/ready`; checks that all other endpoints agree."""
    reply = call(server, "GET", "/v2/health/ready")
    found = reply.status == 200
    assert reply.json()["ready"] is found
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerReady",
            request_serializer=pb.ServerReadyRequest.SerializeToString,
            response_deserializer=pb.ServerReadyResponse.FromString,
        )
        assert ask(pb.ServerReadyRequest()).ready is found
        said = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        serving = health_pb2.HealthCheckResponse.SERVING
        assert (said.status == serving) is found
    status, body = metrics_port_says(server)
    assert status == reply.status
    if not found:
        assert body == reply.json()["reason"]
    return reply.status, reply.json().get("reason", "")


def metrics_port_says(server: ServerProcess) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=10)
    connection.request("GET", "/v2/health/ready")
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def test_a_server_whose_production_is_refused_is_not_ready_and_says_why(tmp_path: Path) -> None:
    publish(str(tmp_path), "good", linear(2))
    publish(str(tmp_path), "bad", linear(1))
    ModelStore(str(tmp_path)).promote("bad", 1)
    break_version(tmp_path, "bad", 1)
    with running_server(tmp_path) as server:
        status, reason = answers(server)
        assert status == 503
        assert "model 'bad': version 1 (production) was refused" in reason
        assert "sha256 differs" in reason
        assert "sha256 differs" in server.wait_for_log(message="not ready")["reason"]
        assert infer(server, "good", linear_input(ROW)).status == 200
        publish(str(tmp_path), "bad", linear(3))
        ModelStore(str(tmp_path)).promote("bad", 2)
        server.wait_for_log(message="ready")
        assert answers(server) == (200, "")


def test_a_version_refused_later_is_named_and_takes_nothing_out_of_service(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    publish(str(tmp_path), "linear", linear(2))
    store.promote("linear", 1)
    with running_server(tmp_path, store_poll_interval_s=0.05) as server:
        assert answers(server) == (200, "")
        publish(str(tmp_path), "other", linear(2))
        break_version(tmp_path, "other", 1)
        server.wait_for_log(message="ready, but not for every model")
        status, reason = answers(server)
        assert status == 200
        assert "model 'other': version 1 was refused" in reason
        assert server.metric("flambeau_model_ready", model="other", version="1") == 0
        assert infer(server, "linear", linear_input(ROW)).status == 200


@pytest.mark.parametrize(("rule", "status"), [("all_models", 503), ("any_model", 200)])
def test_the_rule_is_a_setting(tmp_path: Path, rule: str, status: int) -> None:
    publish(str(tmp_path), "good", linear(2))
    publish(str(tmp_path), "bad", linear(1))
    break_version(tmp_path, "bad", 1)
    with running_server(tmp_path, readiness=rule) as server:
        assert answers(server)[0] == status


def test_a_mistyped_model_is_named_with_the_nearest_name(tmp_path: Path) -> None:
    publish(str(tmp_path), "digits", linear(2))
    with running_server(tmp_path, "--model=digitz") as server:
        status, reason = answers(server)
        assert status == 503
        words = f"the store {tmp_path} has no such model (did you mean 'digits'?)"
        assert reason == f"model 'digitz': {words}"
        assert f"NOT serving digitz: {words}" in server.output.all()


def triton(folder: Path) -> None:
    (folder / "resnet" / "1").mkdir(parents=True)
    (folder / "resnet" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"')
    (folder / "resnet" / "1" / "model.onnx").write_bytes(linear())


def digits(folder: Path) -> None:
    publish(str(folder), "digits", linear(2))


def onnx_files(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(linear())


@pytest.mark.parametrize(
    ("layout", "words"),
    [(triton, "a Triton model repository"), (onnx_files, "a folder of ONNX files")],
)
def test_a_store_of_another_layout_is_named_and_is_not_ready(
    tmp_path: Path, layout: Any, words: str
) -> None:
    layout(tmp_path)
    with running_server(tmp_path) as server:
        status, reason = answers(server)
        assert status == 503
        assert words in reason
        assert "docs/guides/model-store.md" in reason
        printed = server.output.all()
        assert any(line.startswith("NOT serving: ") and words in line for line in printed)
        assert not any("nothing to serve yet" in line for line in printed)


def test_a_worker_that_cannot_serve_production_does_not_roll_out(
    tmp_path: Path, redis: RedisProcess
) -> None:
    """The next worker is not ready, though the one before serves the older version on."""
    store = ModelStore(str(tmp_path))
    publish(str(tmp_path), "linear", linear(2))
    store.promote("linear", 1)
    with running_worker(tmp_path, redis.url) as first, running_gateway(redis.url) as gateway:
        assert metrics_port_says(first)[0] == 200
        assert answers(gateway) == (200, "")
        publish(str(tmp_path), "linear", linear(3))
        break_version(tmp_path, "linear", 2)
        store.promote("linear", 2)
        first.wait_for_log(message="ready, but not for every model")
        assert metrics_port_says(first)[0] == 200
        with running_worker(tmp_path, redis.url) as second:
            status, reason = metrics_port_says(second)
            assert status == 503
            assert "version 2 (production) was refused" in reason
        assert infer(gateway, "linear", linear_input(ROW)).outputs() == {"y": [2, 4, 6, 8]}
        assert answers(gateway)[0] == 200


@pytest.mark.parametrize(
    ("layout", "models", "words"),
    [
        (triton, [], "looks like a Triton model repository"),
        (digits, ["digitz"], "has no such model (did you mean 'digits'?)"),
    ],
)
def test_a_gateway_of_workers_without_what_they_should_serve_is_not_ready(
    tmp_path: Path, redis: RedisProcess, layout: Any, models: list[str], words: str
) -> None:
    layout(tmp_path)
    with (
        running_worker(tmp_path, redis.url, models=models) as worker,
        running_gateway(redis.url) as gateway,
    ):
        assert metrics_port_says(worker)[0] == 503
        status, reason = answers(gateway)
        assert status == 503
        assert words in reason


def test_a_gateway_names_the_models_that_no_worker_has(tmp_path: Path, redis: RedisProcess) -> None:
    digits(tmp_path)
    with (
        running_worker(tmp_path, redis.url),
        running_gateway(redis.url, models=["digits"]) as served,
        running_gateway(redis.url, models=["digits", "digitz"]) as lacking,
    ):
        assert answers(served) == (200, "")
        status, reason = answers(lacking)
        assert status == 503
        assert reason == "model 'digitz': no worker has it (did you mean 'digits'?)"


def test_a_gateway_of_workers_that_refuse_production_is_not_ready(
    tmp_path: Path, redis: RedisProcess
) -> None:
    publish(str(tmp_path), "linear", linear(2))
    break_version(tmp_path, "linear", 1)
    with running_worker(tmp_path, redis.url) as worker, running_gateway(redis.url) as gateway:
        assert metrics_port_says(worker)[0] == 503
        status, reason = answers(gateway)
        assert status == 503
        assert "model 'linear': version 1" in reason
        assert "sha256 differs" in reason
