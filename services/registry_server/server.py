"""The registry of a split server: the ports of a gateway, the model store, and no model.

In: calls of the registry, and through Redis the versions that workers hold. Out: versions in the
store and moves of aliases, which workers follow by themselves. Inference is refused.
Start: bind the ports, answer (not ready), read the store and the workers' versions, become ready.
Stop (SIGTERM or SIGINT): ready goes false, after `drain_delay_s` streams of events end, running
calls finish, the process exits 0. A second signal ends it at once.
"""

import asyncio
import logging
from importlib.metadata import version as installed_version

import prometheus_client
import uvloop

from model_store.errors import KeyFileError, StoreError
from model_store.store import ModelStore
from services.access.shared_rates import SharedRates
from services.errors import UnsupportedError
from services.gateway.fleet_figures import FleetFigures
from services.gateway.front import Front
from services.low_priority_thread import beside_loop
from services.process import raise_descriptor_limit, stop_on_signals
from services.queueing.directory import Directory
from services.queueing.fleet import FleetView
from services.queueing.fleet_directory import FleetDirectory
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.registry import FleetWatch
from services.readiness import Look
from services.registry.callers.deployment_callers import DeploymentCallers
from services.registry.callers.redis_board import RedisBoard
from services.registry_server.config import RegistryConfig
from services.registry_server.opening import open_registry
from services.registry_server.worker_versions import WorkerVersions
from services.settings import ConfigError
from services.telemetry.logs import configure_logs
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.server")

STORE_AGAIN_S = 1.0
"""Pause after a store that could not be read at the start."""


def serve(config: RegistryConfig) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises:
        ConfigError: open to unauthenticated clients, unreadable credentials, no secret for
            webhooks, or no folder of trusted keys.
        PortError: a port is taken.
        QueueUrlError: the URL of the queue is wrong.
        StorageError: the store's URL is wrong.
    """
    configure_logs(config.log_level)
    raise_descriptor_limit(2 * config.max_connections)
    try:
        config.trust().check_folder()
    except KeyFileError as error:
        raise ConfigError(str(error)) from error
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    store = ModelStore(config.store, when_missing="await")
    clients = RedisClients(config.queue)
    uvloop.run(_Process(config, store, clients).run())


class _NoWorker:
    """The intake of every lane: this process sends nothing to workers."""

    waiting = 0

    def accept(self, entry: Entry) -> None:
        """Refuses a request."""
        entry.finish(
            UnsupportedError(
                "this process is the registry, and runs no model; send inference to a gateway"
            )
        )

    def discard(self, entry: Entry, reason: str) -> None:
        """Does nothing: no entry waits here."""


class _Process:
    def __init__(self, config: RegistryConfig, store: ModelStore, clients: RedisClients) -> None:
        self._store, self._outage = store, clients.outage
        self._versions = WorkerVersions(clients.outage)
        metrics = Metrics(installed_version("flambeau"))
        clients.report_certificates(metrics.tls)
        self._directory = directory = Directory()
        queue, worker = MemoryQueue(1), _NoWorker()
        self._fleet = FleetDirectory(directory, queue, lambda _: worker)
        figures = FleetFigures(metrics)
        self._watch = figures.watch = FleetWatch(clients, self._follow, metrics)
        rates = SharedRates(clients.open()) if config.asks_for_credentials else None
        self._board = RedisBoard(clients)
        callers = DeploymentCallers("at the gateways", None, self._board)
        self._front = Front(
            config.of_ports(), installed_version("flambeau"), metrics, directory, queue,
            lambda _: None, rates=rates, figures=figures.of,
            registry=open_registry(config, store, self._versions.holds, callers),
        )  # fmt: skip
        self._has_read_store, self._fault = False, ""
        self._store_away = metrics.store_away

    async def run(self) -> None:
        """Serves until a signal, and drains."""
        asked, front = asyncio.Event(), self._front
        async with front.listening():
            stop_on_signals(asked)
            logger.info("store", extra={"url": self._store.url})
            async with asyncio.TaskGroup() as tasks:
                chores = [
                    tasks.create_task(self._watch.run(self._outage), name="fleet"),
                    tasks.create_task(self._watch_store(), name="store"),
                ]
                await asked.wait()
                await front.begin_drain()
                await front.drain()
                await front.close()
                for chore in chores:
                    chore.cancel()
        await self._board.close()
        logger.info("stopped")

    def _follow(self, view: FleetView) -> None:
        self._fleet.apply(view)
        self._versions.follow(view)
        self._look()

    async def _watch_store(self) -> None:
        """Reads the store until that succeeds, then looks whether a folder is still there."""
        while not self._has_read_store or self._store.storage.is_local:
            try:
                if self._has_read_store:
                    await beside_loop(self._store.storage.check_there)
                else:
                    await beside_loop(lambda: list(self._store.models()))
            except StoreError as error:
                self._tell_away(str(error))
            else:
                if self._fault or not self._has_read_store:
                    self._has_read_store = True
                    self._tell_away("")
            await asyncio.sleep(STORE_AGAIN_S)

    def _tell_away(self, why: str) -> None:
        """Reports in readiness, log and metric why the store cannot be read; empty if it can."""
        if why and why != self._fault:
            logger.error("store is away; the registry waits for it", extra={"reason": why})
        elif self._fault and not why:
            logger.info("store is back")
        self._fault = why
        self._store_away.set(bool(why))
        self._look()

    def _look(self) -> None:
        directory = self._directory
        live = {served.lane.model for served in directory.all_versions()}
        started = self._has_read_store and self._versions.has_seen_workers
        self._front.look(Look(started=started, served=len(live), fault=self._fault))
        # Without it an index of what is served would count as whole while workers start.
        directory.complete = self._fleet.started
