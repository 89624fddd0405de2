"""The front: the ports, the edges behind them, and admission.

Both kinds of process with a front use this one: the gateway, and the all-in-one server.
Start: bind the ports and answer, not ready. Stop: ready goes false, and REST connections close
after their next response; after `drain_delay_s` nothing new is accepted, accepted requests finish,
and the edges close (gRPC by GOAWAY).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from services.access.audit import open_audit_log
from services.access.config import check_open, is_loopback
from services.access.tenants import Tenants
from services.errors import ShuttingDownError
from services.gateway.admission import Admission
from services.gateway.config import GatewaySettings
from services.gateway.edge_port import Door, EdgeParts, EdgePort, http_server
from services.gateway.edges.administration.calls import AdministrationCalls, FiguresSource
from services.gateway.edges.administration.repository import ActOnModel, Repository
from services.gateway.edges.administration.running_settings import RunningSettings, Tell
from services.gateway.edges.grpc_edge import GrpcEdge
from services.gateway.edges.rest_edge import RestEdge
from services.gateway.jobs.job_service import JobService
from services.gateway.payload_settings import redactions
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import NAME, SHARED_MEMORY, ServerFacts
from services.gateway.shared_regions.region_table import RegionTable, make_table
from services.gateway.shared_regions.regions import SharedRegions
from services.gateway.traffic.traffic_router import TrafficRouter
from services.gateway.triton import words
from services.ports import listen, metrics_server
from services.process import freeze_garbage
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import ServedVersion
from services.readiness import Look, Readiness
from services.registry.callers.recent_callers import RecentCallers
from services.registry.registry import Registry
from services.telemetry.loop_lag import sampling_lag
from services.telemetry.metrics import Metrics
from services.tls import open_certificates
from services.tracing.tracer import Tracer
from services.wire.byte_budget import ByteBudget
from services.wire.compression import CompressionThread
from services.wire.loop_turns import LoopTurns
from services.wire.open_port import PortLimits

if TYPE_CHECKING:
    from services.access.authenticator import Authenticator
    from services.access.link_rates import LinkRates
    from services.access.shared_rates import SharedRates
    from services.gateway.payloads.sampler import PayloadSampler

logger = logging.getLogger("flambeau.server")

LAST_REPLIES_S = 5
"""Time for the edges to write once everything accepted is answered. Otherwise watches of
grpc.health.v1 and half-sent bodies would hold the process for the whole drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Addresses of a started server, and the versions it serves."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    is_tls: bool
    asks_for_credentials: bool
    store: str = ""
    """Location of the models; empty in a process without a store."""
    warning: str = ""
    """Warning about the store for its operator; empty for none."""
    processes: str = ""
    """The processes of the server, in words; empty for one by default."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Addresses of a door, by the settings of its ports; empty for the usual ports."""
    served: list[ServedVersion]
    found: Look
    """The versions that should be served and are not."""


class Front:
    """The front of one process.

    Args:
        config: settings of the process.
        version: version of this software.
        metrics: metrics of requests.
        directory: models that are served.
        queue: queue of accepted requests.
        on_started: callback, called once when the served versions are known.
        open_service: factory of the job service, on servers that keep jobs.
        tracer: tracer of requests, if any are traced; exports spans while the ports are open.
        rates: store through which gateways share the rates of callers, if there are several.
        sampler: sampler of payloads, if configured; writes while the ports are open.
        processes: number of fronts that share the ports; if there are several, another process
            serves the metrics.
        figures: figures of the whole server, if other processes have some; else its own.
        control: loads and unloads models, where callers may.
        tell: changes settings of all processes of the server, if there are several.
        region_table: descriptor of the table of regions that these fronts share; None for its own.
        door: API in place of the usual one, on ports of its own.
        registry: registry of the model store, in processes that have a store.
        callers: counts requests by caller, where a registry is told of them.

    Raises:
        ConfigError: unauthenticated clients could reach it, or the files of credentials, of TLS or
            of the audit log cannot be used.
    """

    def __init__(
        self,
        config: GatewaySettings,
        version: str,
        metrics: Metrics,
        directory: Directory,
        queue: MemoryQueue,
        on_started: Callable[[Listening], None],
        open_service: Callable[[Admission], JobService] | None = None,
        tracer: Tracer | None = None,
        rates: "SharedRates | LinkRates | None" = None,
        sampler: "PayloadSampler | None" = None,
        processes: int = 1,
        figures: FiguresSource | None = None,
        control: ActOnModel | None = None,
        tell: Tell | None = None,
        region_table: int | None = None,
        door: Door | None = None,
        registry: Registry | None = None,
        callers: RecentCallers | None = None,
    ) -> None:
        if door is None:
            check_open(config, config.host, is_opened=config.open_to_strangers)
        self._door, self._registry, self._rates = door, registry, rates
        self._config, self._tracer, self._sampler = config, tracer, sampler
        self._authenticator = _open_authenticator(config, metrics, rates)
        directory.is_discreet = self._authenticator is not None
        self._metrics, self._directory, self._queue = metrics, directory, queue
        directory.complete = False
        self._on_started = on_started
        self._admission = Admission(
            directory,
            queue,
            metrics,
            max_in_flight_requests=config.max_in_flight_requests,
            request_timeout_s=config.request_timeout_s,
            degrades=config.when_overloaded == "degrade",
            processes=processes,
        )
        self.limit_by_others = self._admission.limit_by_others
        self.traffic = TrafficRouter(self._admission, queue, metrics, redactions(config))
        self._admission.router, self._admission.callers = self.traffic, callers
        self._is_one_of_many = processes > 1
        self._readiness = Readiness(config.readiness)
        as_triton = config.compat == "triton"
        self._regions = _open_regions(config, region_table)
        facts = self._admission, self._readiness, words.NAME if as_triton else NAME
        further = () if self._regions is None else (SHARED_MEMORY,)
        self._facts = ServerFacts(version, directory, *facts, further)
        self._accounting = RequestAccounting(metrics, directory, config.access_log, tracer)
        self._administration = self._make_administration(figures, control, tell)
        if as_triton:
            directory.unknown_words = words.unknown
            self._admission.words = partial(words.refusal, self._accounting.given_id)
            self._admission.error_words = words.of_error
        self._compression = CompressionThread()
        self._certificates = open_certificates(config, metrics.tls)
        service = open_service(self._admission) if open_service is not None else None
        self._ports = self._make_ports(service)
        self._bound: dict[str, int] = {}

    def _make_administration(
        self, figures: FiguresSource | None, control: ActOnModel | None, tell: Tell | None
    ) -> AdministrationCalls:
        config = self._config
        is_closed = not config.asks_for_credentials and not is_loopback(config.host)
        repository = Repository(
            self._directory,
            self._readiness,
            control,
            timeout_s=config.request_timeout_s,
            is_closed=is_closed,
            as_triton=config.compat == "triton",
        )
        self.settings = settings = RunningSettings(
            self._tracer, tell, is_closed=is_closed, as_triton=config.compat == "triton"
        )
        return AdministrationCalls(
            self._directory, self._accounting, figures, repository, settings, self._regions
        )

    def _parts(self) -> EdgeParts:
        """Returns what all edges share: one byte budget, and the turns of the event loop."""
        budget = ByteBudget(self._config.buffer_limit_bytes)
        self._metrics.buffered_bytes.set_function(lambda: budget.held_bytes)
        return EdgeParts(
            admission=self._admission,
            accounting=self._accounting,
            facts=self._facts,
            sampler=self._sampler,
            metrics=self._metrics,
            limits=_port_limits(self._config),
            budget=budget,
            turns=LoopTurns(),
            compression=self._compression,
            certificates=self._certificates,
        )

    def _make_ports(self, service: JobService | None) -> list[EdgePort]:
        """Makes both edges, or those of the door, and their ports."""
        shared = self._parts()
        if self._door is not None:
            return self._door.ports(shared)
        parts = (self._admission, self._facts, self._accounting)
        config, tls = self._config, self._certificates
        grpc = GrpcEdge(
            *parts,
            limits=shared.limits,
            budget=shared.budget,
            turns=shared.turns,
            compression=self._compression,
            service=service,
            authenticator=self._authenticator,
            sampler=self._sampler,
            tls=tls.grpc_context if tls is not None else None,
            administration=self._administration,
            always_raw=config.compat == "triton",
            regions=self._regions,
            registry=self._registry,
        )
        route = RestEdge(
            *parts,
            service,
            self._authenticator,
            self._sampler,
            self._administration,
            self._regions,
            self._registry,
        ).route
        rest = http_server(route, shared, is_tls=tls is not None)
        host = config.host
        return [
            EdgePort(
                name="http_port",
                host=host,
                port=config.http_port,
                server=rest,
                begin_drain=rest.begin_drain,
            ),
            EdgePort(
                name="grpc_port",
                host=host,
                port=config.grpc_port,
                server=grpc,
                announce=grpc.announce_health,
            ),
        ]

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serves on the ports inside the context.

        Raises:
            PortError: a port is taken.
        """
        config = self._config
        with contextlib.ExitStack() as stack:
            if self._tracer is not None:
                stack.enter_context(self._tracer.exporting())
            if self._sampler is not None:
                stack.enter_context(self._sampler.writing())
            if self._certificates is not None:
                stack.enter_context(self._certificates.renewing())
            sockets = [
                stack.enter_context(
                    listen(one.host, one.port, one.name, is_shared=self._is_one_of_many)
                )
                for one in self._ports
            ]
            metrics_address = config.host, config.metrics_port
            if self._door is not None:
                metrics_address = self._door.metrics_address
            metrics_port = metrics_address[1]
            if not self._is_one_of_many:
                metrics_port = stack.enter_context(
                    metrics_server(*metrics_address, self._metrics.registry, self.why_not_ready)
                )
            stack.enter_context(sampling_lag(self._metrics.loop_lag_seconds.labels()))
            for one, found in zip(self._ports, sockets, strict=True):
                self._bound[one.name] = found.getsockname()[1]
            self._bound["metrics_port"] = metrics_port
            for one, found in zip(self._ports, sockets, strict=True):
                await one.server.start(found)
            async with asyncio.TaskGroup() as tasks:
                # Key files are watched, rates shared and uploads collected with open ports.
                runs = [
                    part.run()
                    for part in (self._authenticator, self._rates, self._registry)
                    if part is not None
                ]
                chores = [tasks.create_task(run) for run in runs]
                yield
                for chore in chores:
                    chore.cancel()
            if self._registry is not None:
                self._registry.close()

    def look(self, found: Look) -> None:
        """Applies a change of the served versions."""
        bound = self._bound
        first = found.started and not self._readiness.look.started
        self._directory.complete = found.started
        self._readiness.see(
            found,
            {"host": self._config.host, **bound, "models": found.served},
        )
        self._announce()
        for served in self._directory.all_versions():
            if served.state == "ready":
                self._accounting.expect(served.lane)
        if first:
            freeze_garbage()
            self._on_started(
                Listening(
                    host=self._config.host,
                    http_port=bound.get("http_port", 0),
                    grpc_port=bound.get("grpc_port", 0),
                    metrics_port=bound.get("metrics_port", 0),
                    is_tls=self._certificates is not None,
                    asks_for_credentials=self._asks_for_credentials(),
                    addresses=self._addresses(),
                    served=list(self._directory.all_versions()),
                    found=found,
                )
            )

    def _addresses(self) -> dict[str, str]:
        """Returns the addresses of a door."""
        if self._door is None:
            return {}
        host = self._door.metrics_address[0]
        found = {one.name: f"{one.host}:{self._bound[one.name]}" for one in self._ports}
        return {**found, "metrics_port": f"{host}:{self._bound['metrics_port']}"}

    def _asks_for_credentials(self) -> bool:
        if self._door is not None:
            return self._door.asks_for_credentials
        return self._authenticator is not None

    def _announce(self) -> None:
        for one in self._ports:
            one.announce()

    def why_not_ready(self) -> str:
        """Returns why clients should send nothing here; empty if they may."""
        return "" if self._facts.is_ready() else self._facts.why_not_served() or "not ready"

    async def begin_drain(self) -> None:
        """Reports not ready, and still accepts for `drain_delay_s` until clients have noticed."""
        logger.info("draining")
        self._facts.leaving = True
        self._announce()
        for one in self._ports:
            one.begin_drain()
        await asyncio.sleep(self._config.drain_delay_s)

    async def drain(self) -> bool:
        """Stops admission, and waits for the requests in flight.

        Returns:
            True if everything accepted was answered in time.
        """
        self._admission.refuse_new()
        self.traffic.mirrors.abandon()
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
        """Closes the edges, once the last responses are written."""
        if self._registry is not None:
            self._registry.feed.leave()
        await asyncio.gather(*(one.server.stop(LAST_REPLIES_S) for one in self._ports))
        self._compression.close()


def _port_limits(config: GatewaySettings) -> PortLimits:
    """Returns the limits of both ports."""
    return PortLimits(
        max_request_bytes=config.max_request_bytes,
        max_connections=config.max_connections,
        keep_alive_timeout_s=config.keep_alive_timeout_s,
        receive_timeout_s=config.receive_timeout_s,
        max_age_s=config.grpc_max_connection_age_s,
        grace_s=config.request_timeout_s,  # no call outlasts the longest request
    )


def _open_regions(config: GatewaySettings, table: int | None) -> SharedRegions | None:
    """Opens the shared memory of callers, if the settings allow any."""
    if not config.shared_memory_objects:
        return None
    opened = RegionTable(make_table() if table is None else table)
    return SharedRegions(config.shared_memory_objects, config.max_request_bytes, opened)


def _open_authenticator(
    config: GatewaySettings, metrics: Metrics, rates: "SharedRates | LinkRates | None"
) -> "Authenticator | None":
    """Opens the audit log; makes the authenticator, if the settings name credentials."""
    open_audit_log(config.audit_log)
    if not config.asks_for_credentials:
        return None
    from services.access.authenticator import Authenticator

    return Authenticator(config, metrics.access, Tenants(metrics.access, rates))
