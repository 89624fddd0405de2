"""What callers may do with gRPC connections: how old they become, how often they are tried.

A gRPC connection lasts as long as both ends do, and its caller resolves the server's name no more:
whoever came before a new server will never ask it. So a server may end connections of some age:
it says so (GOAWAY), the caller makes another one and resolves the name for it.

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


@dataclass(frozen=True, slots=True)
class ConnectionAge:
    """The limits of one server.

    Attributes:
        max_age_s: after it, with a tenth of chance, a connection takes no new calls; 0 for never.
        grace_s: how long calls under way may then still take.
    """

    max_age_s: float
    grace_s: float

    def options(self) -> list[tuple[str, int]]:
        """The options of grpcio's server (gRPC's proposal A9); none for no limit."""
        if not self.max_age_s:
            return []
        return [
            ("grpc.max_connection_age_ms", max(1, round(self.max_age_s * _MILLISECONDS))),
            ("grpc.max_connection_age_grace_ms", max(1, round(self.grace_s * _MILLISECONDS))),
        ]


NO_LIMIT = ConnectionAge(0, 0)
