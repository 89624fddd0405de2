"""The training service: the API, the worker, or both, in one process.

Start: opens the store of jobs, binds the ports, starts to answer requests and to take jobs.
Stop (SIGTERM or SIGINT): accepts nothing new, jobs write a checkpoint and return to the queue,
streams end, the process exits 0. A second signal ends it at once; jobs die with it, and another
worker takes them over when their leases have expired.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator
from importlib.metadata import version as installed_version
from pathlib import Path

import prometheus_client

from services.access.audit import open_audit_log
from services.access.authenticator import Authenticator
from services.access.config import check_open
from services.access.shared_rates import SharedRates
from services.access.tenants import Tenants
from services.errors import QueueUnavailableError
from services.ports import listen, metrics_server
from services.process import process_name, stop_on_signals
from services.queueing.redis_streams.clients import SCHEMES, RedisClients
from services.telemetry.logs import configure_logs
from services.tls import Certificates, open_certificates
from services.trainer.config import TrainerConfig
from services.trainer.edges.grpc_calls import TrainingGrpcEdge
from services.trainer.edges.grpc_connections import ConnectionLimits
from services.trainer.edges.rest import TrainingRoutes
from services.trainer.edges.rest_port import serving_rest
from services.trainer.executors.executor import Executor
from services.trainer.executors.kubeflow import KubeflowExecutor
from services.trainer.executors.local import LocalExecutor
from services.trainer.executors.train_job_api import TrainJobApi
from services.trainer.metrics import TrainerMetrics
from services.trainer.records import OVER
from services.trainer.stores.job_store import JobStore
from services.trainer.stores.redis_store import RedisJobStore
from services.trainer.stores.sqlite_store import SqliteJobStore
from services.trainer.training_job_service import TrainingJobService
from services.trainer.worker import TrainingWorker

logger = logging.getLogger("flambeau.trainer")

COUNT_EVERY_S = 5.0
FORGOTTEN_AT_ONCE = 100
LAST_CALLS_S = 5.0
DAY_S = 86_400.0


def serve(config: TrainerConfig) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises:
        ConfigError: unauthenticated clients could train here, a file of credentials cannot be read,
            a TLS file cannot be used, or a setting of Kubernetes is missing.
        QueueUrlError: the URL of the jobs is wrong.
        QueueUnavailableError: the file of jobs cannot be opened.
        PortError: a port is in use.
        StorageError: the store's folder cannot be created.
        OSError: runs_dir cannot be created.
    """
    configure_logs(config.log_level)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    if config.api:
        check_open(config, config.host)
    open_audit_log(config.audit_log)
    config.runs_folder.mkdir(parents=True, exist_ok=True)
    executor = open_executor(config)
    clients = RedisClients(config.jobs) if config.jobs.partition("://")[0] in SCHEMES else None
    store = open_store(config, clients)
    asyncio.run(_serve(config, clients, store, executor))


def open_store(config: TrainerConfig, clients: RedisClients | None) -> JobStore:
    """Opens the store of jobs that `jobs` names: Redis if it has clients, or else SQLite."""
    if clients is not None:
        return RedisJobStore(clients, config.max_events)
    return SqliteJobStore(Path(config.jobs), config.max_events)


def open_executor(config: TrainerConfig) -> Executor:
    """Creates the executor of the jobs.

    Raises:
        ConfigError: a setting of Kubernetes is missing.
        StorageError: the folder of the store cannot be created or read.
    """
    if config.executor == "kubeflow":
        return KubeflowExecutor(config, TrainJobApi(config))
    return LocalExecutor(config)


async def _serve(
    config: TrainerConfig, clients: RedisClients | None, store: JobStore, executor: Executor
) -> None:
    metrics = TrainerMetrics(installed_version("flambeau"))
    if clients is not None:
        clients.report_certificates(metrics.tls)
    certificates = open_certificates(config, metrics.tls)
    authenticator = rates = None
    if config.api and config.asks_for_credentials:
        rates = SharedRates(clients.open()) if clients is not None else None
        authenticator = Authenticator(config, metrics.access, Tenants(metrics.access, rates))
    service = TrainingJobService(store, config)
    worker = TrainingWorker(store, executor, config, metrics, process_name("trainer"))
    asked = asyncio.Event()
    ports: dict[str, object] = {}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        ports["metrics_port"] = stack.enter_context(
            metrics_server(
                config.host,
                config.metrics_port,
                metrics.registry,
                lambda: "shutting down" if asked.is_set() else "",
            )
        )
        if config.api:
            if certificates is not None:
                stack.enter_context(certificates.renewing())
            api = serve_api(config, service, authenticator, certificates, metrics)
            http_port, grpc_port = await stack.enter_async_context(api)
            ports |= {"http_port": http_port, "grpc_port": grpc_port}
        stop_on_signals(asked)
        async with asyncio.TaskGroup() as tasks:
            chores = [
                tasks.create_task(store.run(), name="changes"),
                tasks.create_task(_keep_house(config, store, metrics), name="housekeeping"),
            ]
            guards = [part for part in (authenticator, rates) if part is not None]
            chores += [tasks.create_task(part.run(), name="authenticator") for part in guards]
            working = tasks.create_task(worker.run()) if config.worker else None
            logger.info("ready", extra={"host": config.host, **ports})
            await asked.wait()
            service.stop()
            worker.stop()
            if working is not None:
                await working
            for chore in chores:
                chore.cancel()
    logger.info("stopped")


@contextlib.asynccontextmanager
async def serve_api(
    config: TrainerConfig,
    service: TrainingJobService,
    authenticator: Authenticator | None,
    tls: Certificates | None,
    metrics: TrainerMetrics,
) -> AsyncIterator[tuple[int, int]]:
    """Serves REST and gRPC until the end of the `async with` block. Yields the two ports."""
    listening = listen(config.host, config.http_port, "http_port")
    grpc_limits = ConnectionLimits(
        max_connections=config.max_connections,
        idle_s=config.keep_alive_timeout_s,
        handshake_s=config.receive_timeout_s,
    )
    edge = TrainingGrpcEdge(service, config.max_bundle_bytes, authenticator, grpc_limits)
    credentials = tls.grpc_credentials() if tls else None
    grpc_port = await edge.start(config.host, config.grpc_port, credentials)
    http_port = listening.getsockname()[1]
    route = TrainingRoutes(service, authenticator).route
    context = tls.context if tls else None
    async with serving_rest(route, listening, config, metrics, context, LAST_CALLS_S):
        try:
            yield http_port, grpc_port
        finally:
            await edge.stop(LAST_CALLS_S)


async def _keep_house(config: TrainerConfig, store: JobStore, metrics: TrainerMetrics) -> None:
    """Counts jobs and deletes old finished ones, periodically, until cancelled."""
    while True:
        try:
            metrics.set_jobs(await store.counts())
            await forget_old(config, store)
        except QueueUnavailableError as error:
            logger.warning("the jobs cannot be counted", extra={"reason": str(error)})
        await asyncio.sleep(COUNT_EVERY_S)


async def forget_old(config: TrainerConfig, store: JobStore) -> None:
    """Deletes jobs that finished more than `keep_days` ago, with their folders.

    Raises:
        QueueUnavailableError: the store of jobs is unavailable.
    """
    oldest = await store.now() - config.keep_days * DAY_S
    for state in OVER:
        for job in await store.oldest(state, FORGOTTEN_AT_ONCE):
            if job.finished_at is not None and job.finished_at < oldest:
                folder = config.runs_folder / job.id
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                await store.forget(job.id)
                logger.info("deleted an expired job", extra={"job": job.id, "state": state})
