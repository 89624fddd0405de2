"""grpc.health.v1 and reflection, as used by Kubernetes, load balancers and grpcurl."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import StatusCode
from grpc_health.v1 import health_pb2 as health
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2 as reflection
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.e2e.grpc_calls import TIMEOUT_S, error_of
from tests.fixtures import onnx_models
from tests.fixtures.prometheus_process import run_tool
from tests.fixtures.servers import ServerProcess, running_server

SERVICE = "inference.GRPCInferenceService"
SERVING = health.HealthCheckResponse.SERVING
NOT_SERVING = health.HealthCheckResponse.NOT_SERVING
DRAIN_TIMEOUT_S = 30
"""Default drain timeout for accepted requests; there are none here."""
SERVICE_UNKNOWN = health.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def health_stub(channel: grpc.Channel) -> Any:
    return HealthStub(channel)


@pytest.mark.parametrize("service", ["", SERVICE])
def test_check(health_stub: Any, service: str) -> None:
    assert health_stub.Check(health.HealthCheckRequest(service=service)).status == SERVING


@pytest.mark.parametrize("service", ["nonsense", "inference", "linear"])
def test_check_of_an_unknown_service(health_stub: Any, service: str) -> None:
    code, _ = error_of(lambda: health_stub.Check(health.HealthCheckRequest(service=service)))
    assert code is StatusCode.NOT_FOUND


def test_watch_of_an_unknown_service_stays_open(health_stub: Any) -> None:
    watch = health_stub.Watch(health.HealthCheckRequest(service="nonsense"), timeout=1)
    assert next(watch).status == SERVICE_UNKNOWN
    code, _ = error_of(lambda: next(watch))
    assert code is StatusCode.DEADLINE_EXCEEDED, "the server ended it"


def watch_of(channel: grpc.Channel, service: str = "") -> Any:
    """Opens a watch that ends even if the server no longer responds."""
    return HealthStub(channel).Watch(health.HealthCheckRequest(service=service), timeout=TIMEOUT_S)


@pytest.fixture
def stopping_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Runs a server that a test may stop."""
    onnx_models.publish(str(tmp_path), "linear", onnx_models.linear())
    with running_server(tmp_path) as server:
        yield server


def test_watch_sees_the_server_stop(stopping_server: ServerProcess) -> None:
    """Told before the port closes, so that a balancer looks elsewhere in time."""
    with grpc.insecure_channel(stopping_server.grpc) as channel:
        watches = [watch_of(channel, service) for service in ("", SERVICE) for _ in range(8)]
        assert {next(watch).status for watch in watches} == {SERVING}
        stopping_server.ask_to_stop()
        # Each watch ends after its update, while the server still notifies the others.
        for watch in watches:
            assert next(watch).status == NOT_SERVING
            watch.cancel()
    assert stopping_server.wait() == 0


def test_watcher_that_leaves_takes_no_other_with_it(stopping_server: ServerProcess) -> None:
    with grpc.insecure_channel(stopping_server.grpc) as channel:
        leaving, staying = watch_of(channel), watch_of(channel)
        assert next(leaving).status == next(staying).status == SERVING
        leaving.cancel()
        stopping_server.ask_to_stop()
        assert next(staying).status == NOT_SERVING


def test_watch_that_never_leaves_does_not_hold_the_server(stopping_server: ServerProcess) -> None:
    with grpc.insecure_channel(stopping_server.grpc) as channel:
        watch = watch_of(channel)
        assert next(watch).status == SERVING
        stopping_server.ask_to_stop()
        assert stopping_server.wait(timeout_s=DRAIN_TIMEOUT_S / 2) == 0


@pytest.fixture
def reflected(channel: grpc.Channel) -> ProtoReflectionDescriptorDatabase:
    return ProtoReflectionDescriptorDatabase(channel)


def test_reflection_lists_the_services(reflected: ProtoReflectionDescriptorDatabase) -> None:
    services = {SERVICE, "grpc.health.v1.Health", "flambeau.v1.Registry"}
    assert services <= set(reflected.get_services())
    registry = DescriptorPool(reflected).FindServiceByName("flambeau.v1.Registry")
    assert registry.methods_by_name["Download"].server_streaming


def test_reflection_describes_the_calls(reflected: ProtoReflectionDescriptorDatabase) -> None:
    service = DescriptorPool(reflected).FindServiceByName(SERVICE)
    names = [method.name for method in service.methods]
    assert names[:6] == [
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"
    ]  # fmt: skip
    assert {"ModelConfig", "ModelStatistics", "RepositoryIndex", "LogSettings"} <= set(names)
    config = service.methods_by_name["ModelConfig"].output_type.fields_by_name["config"]
    assert config.message_type is not None
    assert config.message_type.file.name == "protos/model_config.proto"
    assert "max_batch_size" in config.message_type.fields_by_name
    request = service.methods_by_name["ModelInfer"].input_type
    assert request.fields_by_name["raw_input_contents"].number == 7


def test_reflection_under_its_newer_name(channel: grpc.Channel) -> None:
    """Version 1 has the messages of v1alpha; grpcurl asks for it first."""
    ask = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection.ServerReflectionRequest.SerializeToString,
        reflection.ServerReflectionResponse.FromString,
    )
    newer = "grpc.reflection.v1.ServerReflection"
    questions = [
        reflection.ServerReflectionRequest(list_services=""),
        reflection.ServerReflectionRequest(file_containing_symbol=newer),
        reflection.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    services, own, protocol = ask(iter(questions), timeout=TIMEOUT_S)
    names = {one.name for one in services.list_services_response.service}
    assert {SERVICE, newer, newer.replace("v1", "v1alpha"), "grpc.health.v1.Health"} <= names
    file = descriptor_pb2.FileDescriptorProto.FromString(
        own.file_descriptor_response.file_descriptor_proto[0]
    )
    assert file.package == "grpc.reflection.v1"
    assert "v1alpha" not in str(file)
    assert protocol.file_descriptor_response.file_descriptor_proto


def test_list_of_health(health_stub: Any) -> None:
    found = health_stub.List(health.HealthListRequest()).statuses
    assert {"", SERVICE} <= set(found)
    assert {one.status for one in found.values()} == {SERVING}


def test_metrics_are_named_by_prometheus_rules(server: ServerProcess) -> None:
    run_tool("promtool", "check", "metrics", text=server.metrics_text())
