"""Where requests come in: the ports, the edges behind them, and admission.

Both kinds of process that have a front use this one: the gateway, and the one with everything.
Start: bind the ports and answer, not ready. Stop: ready goes false, nothing new is accepted,
accepted requests finish, the edges close.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from services.errors import ShuttingDownError
from services.gateway.admission import Admission
from services.gateway.config import GatewaySettings
from services.gateway.grpc_edge import GrpcEdge
from services.gateway.http_port import HttpLimits
from services.gateway.http_server import HttpServer
from services.gateway.job_desk import JobDesk
from services.gateway.ledger import Ledger
from services.gateway.rest_edge import RestEdge
from services.gateway.server_facts import ServerFacts
from services.gateway.verification_desk import VerificationDesk
from services.ports import listen, metrics_server, port_error
from services.process import freeze_garbage
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import ServedVersion
from services.telemetry.loop_lag import sampling_lag
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.server")

LAST_REPLIES_S = 5
"""How long the edges may still write once everything accepted is answered. Watches of
grpc.health.v1 and senders in mid-body would otherwise hold the process for the whole drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a started server is to be found, and what it serves."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    served: list[ServedVersion]


class Front:
    """The front of one process.

    Args:
        config: its settings.
        version: of this software.
        metrics: where requests are counted.
        directory: what is served.
        queue: where accepted requests go.
        on_ready: called once, when it is known what is served.
        open_desk: makes the desk where jobs are taken in, where there are jobs.
        verifications: where versions are verified, where models run in this process.
    """

    def __init__(
        self,
        config: GatewaySettings,
        version: str,
        metrics: Metrics,
        directory: Directory,
        queue: MemoryQueue,
        on_ready: Callable[[Listening], None],
        open_desk: Callable[[Admission], JobDesk] | None = None,
        verifications: VerificationDesk | None = None,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._directory = directory
        directory.complete = False
        self._queue = queue
        self._on_ready = on_ready
        self._admission = Admission(
            directory,
            queue,
            metrics,
            max_in_flight_requests=config.max_in_flight_requests,
            request_timeout_s=config.request_timeout_s,
            degrades=config.when_overloaded == "degrade",
        )
        self._facts = ServerFacts(version, directory, self._admission, config.models)
        edges = (self._admission, self._facts, Ledger(metrics, directory, config.access_log))
        max_bytes = config.max_request_bytes
        desk = open_desk(self._admission) if open_desk is not None else None
        self._grpc = GrpcEdge(
            *edges,
            max_request_bytes=max_bytes,
            max_calls=config.max_grpc_calls,
            desk=desk,
            verifications=verifications,
        )
        limits = HttpLimits(
            max_request_bytes=max_bytes,
            max_connections=config.max_connections,
            keep_alive_timeout_s=config.keep_alive_timeout_s,
            receive_timeout_s=config.receive_timeout_s,
        )
        self._rest = HttpServer(RestEdge(*edges, desk).route, limits, metrics)
        self._ports = (0, 0, 0)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answers on the ports inside.

        Raises:
            PortError: a port is taken.
        """
        config = self._config
        with contextlib.ExitStack() as stack:
            http_socket = stack.enter_context(listen(config.host, config.http_port, "http_port"))
            grpc_port = self._bind_grpc()
            metrics_port = stack.enter_context(
                metrics_server(config.host, config.metrics_port, self._metrics.registry)
            )
            stack.enter_context(sampling_lag(self._metrics.loop_lag_seconds.labels()))
            self._grpc.start()
            self._ports = (http_socket.getsockname()[1], grpc_port, metrics_port)
            await self._rest.start(http_socket)
            yield

    def look(self, started: bool) -> None:
        """What is served may have changed.

        Args:
            started: whether it is known what is served.
        """
        first = started and not self._facts.started
        self._facts.started = self._directory.complete = started
        self._grpc.announce_health()
        if first:
            freeze_garbage()
            http_port, grpc_port, metrics_port = self._ports
            self._on_ready(
                Listening(
                    host=self._config.host,
                    http_port=http_port,
                    grpc_port=grpc_port,
                    metrics_port=metrics_port,
                    served=list(self._directory.all_versions()),
                )
            )

    async def drain(self) -> bool:
        """Says not ready, lets nothing new in, waits for what is in, then closes the edges.

        Returns:
            Whether everything accepted had its answer in time.
        """
        logger.info("draining")
        self._admission.refuse_new()
        self._grpc.announce_health()
        timeout_s = self._config.drain_timeout_s
        if left := await self._queue.wait_empty(timeout_s):
            logger.warning("drain timed out", extra={"unanswered": left})
            self._queue.fail_all(
                ShuttingDownError(
                    f"this server is shutting down and had no answer within {timeout_s:g} s "
                    "(drain_timeout_s); send the request to another"
                )
            )
        return not left

    async def close(self) -> None:
        """Closes the edges, once the last answers are written."""
        await asyncio.gather(self._rest.stop(LAST_REPLIES_S), self._grpc.stop(LAST_REPLIES_S))

    def _bind_grpc(self) -> int:
        host, port = self._config.host, self._config.grpc_port
        if port:
            # gRPC's own refusal hides the reason, and writes a second line past our logs.
            listen(host, port, "grpc_port").close()
        try:
            return self._grpc.bind(host, port)
        except RuntimeError as error:
            raise port_error(port, "grpc_port", str(error)) from error
