"""The inference process: takes requests from Redis and runs them. Its only port serves metrics.

Ready (on that port): the store was read, its models are live, and Redis has been notified.
Start: reads the store, loads models, announces them.
Stop (SIGTERM or SIGINT): withdraws all announcements, returns requests that have not started to
Redis, finishes and answers the rest, closes its backends, exits 0. A second signal ends it at once.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version as installed_version

import prometheus_client
import uvloop
from redis.exceptions import RedisError

from model_store.store import ModelStore
from services.errors import ShuttingDownError
from services.inference.config import InferenceConfig
from services.inference.loading.configured_policy import serving_policy
from services.inference.loading.reconciler import Reconciler
from services.inference.model_control import ModelControl
from services.inference.start_checks import check_machine
from services.inference.store_view import serving_store
from services.ports import metrics_server
from services.process import freeze_garbage, process_name, stop_on_signals
from services.queueing.directory import Directory
from services.queueing.fleet import AnnouncedModels, FleetView
from services.queueing.fleet_directory import make_live
from services.queueing.host_files import HostFiles
from services.queueing.memory_queue import MemoryQueue
from services.queueing.model_control.model_set import ModelSet
from services.queueing.records import Lane
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.downlink import LaneLoad
from services.queueing.redis_streams.receiver import RedisReceiver
from services.queueing.redis_streams.registry import Announcer, FleetWatch
from services.readiness import Readiness
from services.rollouts.controller import RolloutController
from services.rollouts.gateway_counts import CountsOfGateways
from services.telemetry.logs import configure_logs
from services.telemetry.loop_lag import sampling_lag
from services.telemetry.metrics import Metrics
from services.tracing.fleet_settings import FleetSettings
from services.tracing.setting import apply_change, open_tracer

logger = logging.getLogger("flambeau.server")

MAX_HELD = 1_000_000
"""Effectively no limit: the process takes no more from Redis than each lane has capacity for."""


def serve(config: InferenceConfig) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises:
        ConfigError: the device or the folder of trusted keys is not on this machine.
        PortError: the port of metrics is in use.
        QueueUrlError: the URL of the queue is wrong.
        StorageError: the store's URL is wrong.
    """
    check_machine(config)
    configure_logs(config.log_level)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    store = ModelStore(config.store, when_missing="await")
    process = _Process(config, store, RedisClients(config.queue))
    uvloop.run(process.run())


class _Process:
    def __init__(self, config: InferenceConfig, store: ModelStore, clients: RedisClients) -> None:
        self._config = config
        version = installed_version("flambeau")
        self._metrics = Metrics(version, with_triton_names=config.triton_metrics)
        clients.report_certificates(self._metrics.tls)
        self._outage = clients.outage
        self._directory = Directory()
        self._readiness = Readiness(config.readiness)
        self._port = 0
        self._queue = MemoryQueue(MAX_HELD)
        name = process_name("worker")
        files = HostFiles(name)
        self._receiver = RedisReceiver(clients, name, self._queue, self._metrics, files)
        self._watch = FleetWatch(clients, self._follow, self._metrics)
        self._announcer = Announcer(
            clients, name, self._directory, self._receiver.serves, self._metrics.figures.encoded,
            self._announced_models,
        )  # fmt: skip
        self._control = ModelControl(config.model_control, config.models)
        self._models: ModelSet | None = None
        if self._control.is_explicit:
            begin, changed = self._control.begin, self._announcer.announce_soon
            self._models = ModelSet(clients, config.models, begin, changed)
        self._tracer = open_tracer(config, "inference", self._metrics)
        self._settings = FleetSettings(clients, lambda change: apply_change(change, self._tracer))
        self._reconciler = Reconciler(
            serving_store(config, store, self._metrics),
            self._receiver,
            self._directory,
            self._metrics,
            serving_policy(config),
            self._announcer.go_live,
            self._tracer,
            self._control,
        )
        self._gateways = CountsOfGateways(clients)
        self._rollouts = RolloutController(
            store, self._directory, self._metrics.rollouts, name, gateways=self._gateways
        )

    async def run(self) -> None:
        config = self._config
        asked, drained = asyncio.Event(), asyncio.Event()
        with (
            metrics_server(
                config.host,
                config.metrics_port,
                self._metrics.registry,
                lambda: "shutting down" if asked.is_set() else self._why_not_ready(),
            ) as port,
            sampling_lag(self._metrics.loop_lag_seconds.labels()),
            self._tracer.exporting() if self._tracer else contextlib.nullcontext(),
        ):
            stop_on_signals(asked)
            self._port = port
            async with self._receiver.running(), asyncio.TaskGroup() as tasks:
                watches = [self._announcer.run(), self._watch.run(), self._settings.run()]
                if self._models is not None:
                    with contextlib.suppress(RedisError):  # it is followed later, then
                        await self._models.look()
                    watches.append(self._models.run())
                watching = [tasks.create_task(watch) for watch in watches]
                reconciling = self._reconciler.run(drained, self._after_pass)
                tasks.create_task(reconciling, name="reconciler")
                rolling = tasks.create_task(self._rollouts.run(drained), name="rollouts")
                await asked.wait()
                logger.info("draining")
                for task in watching:
                    task.cancel()
                await self._drain()
                drained.set()
                await rolling
            await self._gateways.close()
        logger.info("stopped")

    def _why_not_ready(self) -> str:
        """Returns why the models are not served, or not announced to Redis; empty if they are."""
        if not self._readiness.is_ready:
            return self._readiness.why()
        if self._models is None and not self._directory.are_live(self._config.models):
            return "starting: the fleet does not use the versions loaded here yet"
        if self._announcer.is_stored:
            return ""
        why = self._outage.why
        return f"the queue is unreachable: {why}" if why else "not announced in Redis yet"

    def _follow(self, view: FleetView) -> None:
        make_live(self._directory, view)
        self._control.nudge()  # a load waits for this

    def _announced_models(self) -> AnnouncedModels | None:
        if self._models is None:
            return None
        return self._models.announced(self._reconciler.look.unloaded)

    def _after_pass(self) -> None:
        first = self._reconciler.converged_once and not self._announcer.started
        self._announcer.row_s = self._reconciler.row_s()
        for lane, loads in _by_version(self._receiver.loads(jobs=False)).items():
            self._metrics.set_stream(
                lane.model,
                lane.version,
                waiting=sum(load.waiting for load in loads),
                taken=sum(load.taken for load in loads),
                oldest_s=max(load.oldest_s for load in loads),
            )
        for lane, loads in _by_version(self._receiver.loads(jobs=True)).items():
            self._metrics.set_jobs(
                lane.model,
                lane.version,
                waiting=sum(load.waiting for load in loads),
                running=sum(load.taken for load in loads),
            )
        self._announcer.started = self._reconciler.converged_once
        found = self._reconciler.look
        self._announcer.fault = found.store_fault()
        self._readiness.see(found, {"metrics_port": self._port, "models": found.served})
        if first:
            freeze_garbage()

    async def _drain(self) -> None:
        """Returns requests that have not started to Redis, and answers those that have."""
        timeout_s = self._config.drain_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._receiver.drain()
        except TimeoutError:
            logger.warning("drain timed out", extra={"unanswered": self._queue.unanswered})
            self._receiver.abandon()
            self._reconciler.abandon_runs()
            self._queue.fail_all(
                ShuttingDownError(
                    f"the worker is shutting down and had no answer within {timeout_s:g} s "
                    "(drain_timeout_s); send the request again"
                )
            )


def _by_version(loads: Mapping[Lane, LaneLoad]) -> dict[Lane, list[LaneLoad]]:
    """Groups the loads of lanes by version: the default lane, and those of further artifacts."""
    found: dict[Lane, list[LaneLoad]] = defaultdict(list)
    for lane, load in loads.items():
        found[lane.default].append(load)
    return found
