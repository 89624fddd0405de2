"""The REST port of the training service: HTTP/1 as the gateway speaks it, for few, known clients.

A connection over the limit replaces the one that has waited longest for its peer. A connection
whose request is being answered is kept; if all are, the new one is refused.
"""

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial

from services.trainer.config import TrainerConfig
from services.trainer.edges.submission_body import MAX_BESIDE_BYTES
from services.trainer.metrics import TrainerMetrics
from services.wire.byte_budget import ByteBudget
from services.wire.http1.connection import HttpConnection
from services.wire.http1.exchange import Router
from services.wire.http1.port import HttpPort
from services.wire.open_port import PortLimits, PortServer

BUFFERED_BODIES = 4
"""Bodies of the largest size that fit into memory at once; more are refused (503)."""
LEAST_BUFFERED_BYTES = 64 * 2**20


@contextlib.asynccontextmanager
async def serving_rest(
    router: Router,
    listening: socket.socket,
    config: TrainerConfig,
    metrics: TrainerMetrics,
    tls: ssl.SSLContext | None,
    last_calls_s: float,
) -> AsyncIterator[None]:
    """Serves REST inside the context.

    Args:
        router: function from a head to the opener of its exchange.
        listening: bound socket, which the server then owns.
        config: settings of the service.
        metrics: counters of closed connections.
        tls: context of TLS; None for plain text.
        last_calls_s: time that calls in flight get at the end.
    """
    # Base64 takes four thirds of the size of its content.
    body_bytes = config.max_bundle_bytes * 4 // 3 + MAX_BESIDE_BYTES
    limits = PortLimits(
        max_request_bytes=body_bytes,
        max_connections=config.max_connections,
        keep_alive_timeout_s=config.keep_alive_timeout_s,
        receive_timeout_s=config.receive_timeout_s,
        replaces_idle=True,
    )
    budget = ByteBudget(max(BUFFERED_BODIES * body_bytes, LEAST_BUFFERED_BYTES))
    port = HttpPort(router, limits, metrics, budget)
    server = PortServer(port, partial(HttpConnection, port), tls)
    await server.start(listening)
    try:
        yield
    finally:
        await server.stop(last_calls_s)
        port.compression.close()
