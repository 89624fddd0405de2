"""The settings of a server of several processes."""

import os

import pytest

from services.settings import ConfigError, checked
from services.standalone.config import ServerConfig


@pytest.mark.parametrize(("cores", "edges"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 4), (64, 4)])
def test_auto_leaves_a_core_to_the_model_process(
    cores: int, edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    assert checked(ServerConfig, {"processes": "auto"}).edges == edges


def test_processes_are_a_number_or_auto() -> None:
    assert checked(ServerConfig, {}).edges == 1
    assert checked(ServerConfig, {"processes": 3}).edges == 3
    for value in (0, 65, "all"):
        with pytest.raises(ConfigError, match="processes"):
            checked(ServerConfig, {"processes": value})


def test_edge_has_its_share_of_the_limits() -> None:
    server = checked(
        ServerConfig,
        {
            "processes": 4,
            "max_connections": 10,
            "max_buffered_bytes": 2**30,
            "max_in_flight_requests": 100,
            "payload_samples": {"*": {"max_per_minute": 60}},
        },
    )
    edge = server.of_edge({"http_port": 81, "grpc_port": 82, "metrics_port": 83})
    assert (edge.http_port, edge.grpc_port, edge.metrics_port) == (81, 82, 83)
    assert edge.max_connections == 3
    assert edge.max_buffered_bytes == 2**28
    assert edge.payload_samples["*"].max_per_minute == 15
    assert edge.max_in_flight_requests == 100, "counted over all edges"
    large = checked(ServerConfig, {"processes": 8, "max_request_bytes": 2**30})
    assert large.of_edge({}).max_buffered_bytes == 2**31


def test_machine_whose_memory_order_is_not_that_of_x86_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match="aarch64"):
        checked(ServerConfig, {"processes": 2})
    assert checked(ServerConfig, {"processes": "auto"}).edges == 1
    assert checked(ServerConfig, {}).edges == 1
