"""Limits of connections, in the words of grpcio."""

import pytest

from services.trainer.edges.grpc_connections import NO_LIMIT, ConnectionLimits


@pytest.mark.parametrize(
    ("limits", "options"),
    [
        (NO_LIMIT, {}),
        (
            ConnectionLimits(max_connections=9, idle_s=75, handshake_s=0.0001),
            {
                "grpc.max_allowed_incoming_connections": 9,
                "grpc.max_connection_idle_ms": 75_000,
                "grpc.server_handshake_timeout_ms": 1,  # 0 would be none
            },
        ),
    ],
)
def test_options(limits: ConnectionLimits, options: dict[str, int]) -> None:
    assert dict(limits.options()) == options
