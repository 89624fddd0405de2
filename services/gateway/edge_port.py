"""The ports of a front, whatever protocol answers there; and doors, which bring ports of their own.

A door is another server's API in place of the Open Inference Protocol: its edges use the same
admission, accounting, limits and event loop, and the front starts, drains and stops their ports as
its own.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from services.gateway.admission import Admission
from services.gateway.inference import Sampler
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import ServerFacts
from services.telemetry.metrics import Metrics
from services.tls import Certificates
from services.wire.byte_budget import ByteBudget
from services.wire.compression import CompressionThread
from services.wire.http1.connection import HttpConnection
from services.wire.http1.exchange import Exchange, Opener, Router
from services.wire.http1.port import HttpPort
from services.wire.loop_turns import LoopTurns
from services.wire.open_port import PortLimits, PortServer


class EdgeServer(Protocol):
    """The interface of a port's server that a front uses."""

    async def start(self, listening: socket.socket) -> None:
        """Starts serving on a bound socket, which the server then owns."""

    async def stop(self, grace_s: float) -> None:
        """Refuses what is new, lets the rest finish within `grace_s`, and drops it then."""


def _nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePort:
    """A port of a front."""

    name: str
    """The setting that it is chosen by."""
    host: str
    port: int
    """0 picks a free one."""
    server: EdgeServer
    begin_drain: Callable[[], None] = _nothing
    """Called when clients should leave."""
    announce: Callable[[], None] = _nothing
    """Called when the readiness of the server may have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeParts:
    """The parts of a front that its edges share."""

    admission: Admission
    accounting: RequestAccounting
    facts: ServerFacts
    sampler: Sampler | None
    metrics: Metrics
    limits: PortLimits
    budget: ByteBudget
    turns: LoopTurns
    compression: CompressionThread
    certificates: Certificates | None
    """Those of TLS, if the settings name any."""


class Door(Protocol):
    """An API on ports of its own.

    Attributes:
        metrics_address: host and port of the metrics.
        asks_for_credentials: True if it authenticates its callers.
    """

    metrics_address: tuple[str, int]
    asks_for_credentials: bool

    def ports(self, parts: EdgeParts) -> list[EdgePort]:
        """Makes its ports.

        Raises:
            ConfigError: they cannot be served as its settings ask.
        """


def http_server(
    route: Router, shared: EdgeParts, *, is_tls: bool, unread: Opener = Exchange
) -> PortServer:
    """Makes the server of an HTTP port.

    Args:
        route: finds the handler of a request.
        shared: parts of the front.
        is_tls: True if the port speaks TLS, for which there are certificates.
        unread: opens an exchange for what is no request.
    """
    port = HttpPort(
        route, shared.limits, shared.metrics, shared.budget, shared.turns, shared.compression,
        unread,
    )  # fmt: skip
    context = shared.certificates.context if is_tls and shared.certificates else None
    return PortServer(port, partial(HttpConnection, port), context)
