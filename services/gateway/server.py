"""A gateway: the front, and a queue on Redis behind it. Holds no model.

Start: bind the ports, answer (not ready), read the workers' versions from Redis, become ready.
Stop (SIGTERM or SIGINT): ready goes false, after `drain_delay_s` nothing new is accepted, accepted
requests finish, the process exits 0. A second signal ends it at once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version as installed_version

import prometheus_client
import uvloop

from flambeau.protocol.strict import nearest_name
from services.access.shared_rates import SharedRates
from services.gateway.admission import Admission
from services.gateway.config import GatewayConfig
from services.gateway.fleet_figures import FleetFigures
from services.gateway.front import Front, Listening
from services.gateway.jobs.job_service import JobService
from services.gateway.jobs.webhooks import Webhooks
from services.gateway.payload_settings import open_sampler
from services.process import process_name, raise_descriptor_limit, stop_on_signals
from services.queueing.directory import Directory
from services.queueing.fleet import FleetView
from services.queueing.fleet_directory import FleetDirectory
from services.queueing.host_files import HostFiles
from services.queueing.memory_queue import MemoryQueue
from services.queueing.model_control.model_acts import ModelActs
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.jobs import JobLimits, Jobs
from services.queueing.redis_streams.registry import FleetWatch
from services.queueing.redis_streams.sender import RedisSender
from services.queueing.redis_streams.webhook_queue import WebhookQueue
from services.readiness import Look
from services.registry.callers.deployment_callers import ReportSender
from services.registry.callers.recent_callers import RecentCallers
from services.registry.callers.redis_board import RedisBoard
from services.rollouts.gateway_counts import GatewayCounts
from services.telemetry.logs import configure_logs
from services.telemetry.metrics import Metrics
from services.tracing.fleet_settings import FleetSettings
from services.tracing.setting import apply_change, open_tracer
from services.webhook_calls import read_secret

logger = logging.getLogger("flambeau.server")

NO_WORKERS = (
    "starting: no worker has announced itself in this gateway's Redis; start one with the same "
    "queue (flambeau inference), or see its log"
)


def serve(config: GatewayConfig) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises:
        ConfigError: open to unauthenticated clients, unreadable credentials, or no sample store.
        PortError: a port is taken.
        QueueUrlError: the URL of the queue is wrong.
    """
    configure_logs(config.log_level)
    raise_descriptor_limit(2 * config.max_connections)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    uvloop.run(_serve(config, RedisClients(config.queue)))


async def _serve(config: GatewayConfig, clients: RedisClients) -> None:
    version, name = installed_version("flambeau"), process_name("gateway")
    metrics = Metrics(version, with_triton_names=config.triton_metrics)
    directory = Directory()
    clients.report_certificates(metrics.tls)
    queue = MemoryQueue(config.max_queue_depth)
    jobs = Jobs(clients, JobLimits(config.max_waiting_jobs, config.job_result_ttl_s))

    def open_service(admission: Admission) -> JobService:
        return JobService(
            admission,
            jobs,
            max_timeout_s=config.job_timeout_s,
            webhook_hosts=config.webhook_hosts,
        )

    tracer = open_tracer(config, "gateway", metrics)
    rates = SharedRates(clients.open()) if config.asks_for_credentials else None
    sampler = open_sampler(config, directory, metrics)
    figures, callers = FleetFigures(metrics), RecentCallers()
    acts = ModelActs(clients, directory)
    settings = FleetSettings(clients, lambda change: apply_change(change, tracer))
    front = Front(
        config, version, metrics, directory, queue, _ignore, open_service, tracer, rates, sampler,
        figures=figures.of, control=acts.act, tell=settings.tell, callers=callers,
    )  # fmt: skip

    def unreached(why: str) -> None:
        front.look(Look(started=False, fault=why))

    sender = RedisSender(clients, name, config.max_queue_depth, unreached, HostFiles(name))
    fleet = FleetDirectory(directory, queue, sender.lane)

    def changed(view: FleetView) -> None:
        sender.learn(view.row_s, view.workers, view.versions.values())
        fleet.apply(view)
        acts.learn(view)
        front.look(_seen(config.models, directory, fleet.started, view))

    figures.watch = fleet_watch = FleetWatch(clients, changed, metrics)

    async def watch() -> None:
        await sender.reached.wait()  # not ready before a request could be sent
        try:
            await fleet_watch.run()
        finally:
            await acts.close()

    chores: dict[str, Callable[[], Coroutine[None, None, None]]]
    chores = {"sender": sender.run, "fleet": watch, "jobs": jobs.run, "settings": settings.run}
    chores["counts"] = GatewayCounts(clients, name, directory, front.traffic.counts).run
    board = RedisBoard(clients)
    chores["callers"] = ReportSender(board, name, callers).run
    if config.webhook_hosts:
        chores["webhooks"] = _webhooks(config, clients, name, jobs, directory).run
    await _run(front, jobs, chores)
    await board.close()


def _webhooks(
    config: GatewayConfig, clients: RedisClients, name: str, jobs: Jobs, directory: Directory
) -> Webhooks:
    """Makes the sender of webhooks.

    Raises:
        ConfigError: there is no secret, or it cannot be read or is too short.
    """
    secret = read_secret(config.webhook_secret_file)
    queue = WebhookQueue(clients.open(), name)
    return Webhooks(queue, jobs, lambda: _models(directory), secret, config.webhook_hosts)


def _models(directory: Directory) -> set[str]:
    """Returns the names of all models that workers serve."""
    return {served.lane.model for served in directory.all_versions()}


async def _run(
    front: Front, jobs: Jobs, chores: Mapping[str, Callable[[], Coroutine[None, None, None]]]
) -> None:
    """Serves, and runs the chores beside it, until a signal; then drains."""
    asked = asyncio.Event()
    async with front.listening():
        stop_on_signals(asked)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run(), name=chore) for chore, run in chores.items()]
            await asked.wait()
            await front.begin_drain()
            jobs.stop_waiting()
            await front.drain()
            await front.close()
            for task in running:
                task.cancel()
    logger.info("stopped")


def _seen(named: Sequence[str], directory: Directory, started: bool, view: FleetView) -> Look:
    """Compares the versions that the workers serve with those that should be served.

    A worker's fault of its store counts only if no worker has any model: otherwise it concerns
    that worker alone, which is not ready itself.
    """
    known = _models(directory)
    loading = {lane.model for lane, one in view.versions.items() if one.state == "loading"}
    missing = [] if view.is_chosen else [name for name in named if name not in known]
    return Look(
        started=started,
        served=len([model for model in known if directory.live_version(model) is not None]),
        missing={name: f"no worker has it{nearest_name(name, known)}" for name in missing},
        refused=directory.refused(),
        fault="" if known else "; ".join(view.faults),
        awaits="" if view.present else NO_WORKERS,
        loading=() if started else tuple(sorted(loading)),
        unloaded=tuple(sorted({name for one in view.follow for name in one.unloaded} - known)),
    )


def _ignore(_: Listening) -> None:
    """Does nothing: a gateway logs its start."""
