"""Limits of the connections to a grpcio server: their number, idle time and pings.

A client detects a dead machine only by pings (keepalive, gRPC's proposal A8). By default, grpcio's
server closes connections that ping more often than every five minutes while it has nothing to send,
so a client that pings every ten seconds would lose each call that takes half a minute.
"""

from dataclasses import dataclass

_MILLISECONDS = 1000
PINGS: list[tuple[str, int]] = [
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
]
"""Options of grpcio's server: allow one ping per second, with and without a call in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one server; 0 for no limit.

    Attributes:
        max_connections: maximum open connections; more are closed without a message.
        idle_s: idle timeout of a connection without a call.
        handshake_s: timeout of the handshake of TLS and HTTP/2.
    """

    max_connections: int = 0
    idle_s: float = 0
    handshake_s: float = 0

    def options(self) -> list[tuple[str, int]]:
        """Returns the options of grpcio's server; none for no limit."""
        moments = {
            "grpc.max_connection_idle_ms": self.idle_s,
            "grpc.server_handshake_timeout_ms": self.handshake_s,
        }
        found = [
            (name, max(1, round(limit_s * _MILLISECONDS)))
            for name, limit_s in moments.items()
            if limit_s
        ]
        if self.max_connections:
            found.append(("grpc.max_allowed_incoming_connections", self.max_connections))
        return found


NO_LIMIT = ConnectionLimits()
