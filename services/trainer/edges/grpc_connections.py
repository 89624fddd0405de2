"""What callers may do with connections of a server of grpcio: open many, be silent, ping.

A caller learns of a machine that died by pings alone (keepalive, gRPC's proposal A8). grpcio's
server ends connections that ping more than every five minutes while it has nothing to send, so a
caller who pings every ten seconds would lose each call that takes half a minute.
"""

from dataclasses import dataclass

_MILLISECONDS = 1000
PINGS: list[tuple[str, int]] = [
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
]
"""Options of grpcio's server: a ping a second is harmless, with and without a call under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one server; 0 is none.

    Attributes:
        max_connections: open at once; what comes beyond them is closed without a word.
        idle_s: how long a connection may stay open without a call.
        handshake_s: how long it may take to speak TLS and HTTP/2.
    """

    max_connections: int = 0
    idle_s: float = 0
    handshake_s: float = 0

    def options(self) -> list[tuple[str, int]]:
        """The options of grpcio's server; none for no limit."""
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
