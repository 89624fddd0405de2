"""Runs gateway front, memory queue and reconciler in one process, or hands over to a supervisor.

Start: bind the ports, begin to answer (not ready), scan the store, become ready.
Stop (SIGTERM or SIGINT): readiness becomes false, after `drain_delay_s` new requests are refused,
accepted ones finish, workers close their backends, the process exits 0. A second signal kills it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version as installed_version

import prometheus_client
import uvloop

from model_store.store import ModelStore
from services.access.audit import open_audit_log
from services.gateway.front import Front, Listening
from services.gateway.payload_settings import open_sampler
from services.inference.loading.configured_policy import serving_policy
from services.inference.loading.policy import ServingPolicy
from services.inference.loading.reconciler import Reconciler
from services.inference.model_control import ModelControl
from services.inference.start_checks import check_machine
from services.inference.store_view import serving_store
from services.process import process_name, raise_descriptor_limit, stop_on_signals
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.registry.callers.deployment_callers import DeploymentCallers
from services.registry.callers.recent_callers import RecentCallers
from services.registry_server.opening import holds, open_registry
from services.rollouts.controller import RolloutController
from services.standalone.config import ServerConfig
from services.telemetry.logs import configure_logs
from services.telemetry.metrics import Metrics
from services.tracing.setting import open_tracer

logger = logging.getLogger("flambeau.server")


def serve(
    config: ServerConfig,
    on_started: Callable[[Listening], None],
    pinned: Mapping[str, int] | None = None,
) -> None:
    """Runs until SIGTERM or SIGINT.

    Args:
        config: settings of the server.
        on_started: called once, after the first full scan of the store.
        pinned: the only version to serve, by model, where one process does all; others follow
            the pointers.

    Raises:
        ConfigError: it would be open without authentication; access or samples are misconfigured;
            the device or the folder of trusted keys is not on this machine.
        PortError: a port is in use.
        StorageError: the store cannot be opened.
    """
    configure_logs(config.log_level)
    raise_descriptor_limit(2 * -(-config.max_connections // config.edges))
    if config.edges > 1:
        from services.standalone import supervisor

        open_audit_log(config.audit_log)  # the edges write to it; this ends a start in vain
        supervisor.serve(config, on_started)
        return
    check_machine(config)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    store = ModelStore(config.store)
    policy = replace(serving_policy(config), pinned=pinned or {})
    uvloop.run(_serve(config, store, policy, on_started))


async def _serve(
    config: ServerConfig,
    store: ModelStore,
    policy: ServingPolicy,
    on_started: Callable[[Listening], None],
) -> None:
    version = installed_version("flambeau")
    metrics = Metrics(version, with_triton_names=config.triton_metrics)
    directory = Directory()
    queue = MemoryQueue(config.max_queue_depth)
    tracer = open_tracer(config, "server", metrics)
    sampler = open_sampler(config, directory, metrics, store.storage, creates=True)
    control = ModelControl(policy.control, policy.models)
    door = None
    if config.torchserve:
        from services.standalone.torchserve_door import open_door

        door = open_door(config, store, directory, control.act)
    callers = RecentCallers() if config.has_registry else None
    told = DeploymentCallers("at this server", callers)
    registry = open_registry(config, store, partial(holds, directory), told) if callers else None
    front = Front(
        config, version, metrics, directory, queue,
        lambda listening: on_started(
            replace(
                listening,
                store=store.url,
                warning=store.storage.how_new(),
                processes="one process, for auto finds too few cores for more"
                if config.processes == "auto"
                else "",
            )
        ),
        tracer=tracer, sampler=sampler, control=control.act if control.is_explicit else None,
        door=door, registry=registry, callers=callers,
    )  # fmt: skip
    reconciler = Reconciler(
        serving_store(config, store, metrics), queue, directory, metrics, policy, tracer=tracer,
        control=control,
    )  # fmt: skip
    rollouts = RolloutController(
        store, directory, metrics.rollouts, process_name("server"), front.traffic.counts
    )
    asked, drained = asyncio.Event(), asyncio.Event()
    async with front.listening():
        stop_on_signals(asked)
        logger.info("store", extra={"url": store.url, "is_new": store.storage.is_new})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                reconciler.run(drained, lambda: front.look(reconciler.look)),
                name="reconciler",
            )
            tasks.create_task(rollouts.run(drained), name="rollouts")
            await asked.wait()
            await front.begin_drain()
            if not await front.drain():
                reconciler.abandon_runs()
            await front.close()
            drained.set()
    logger.info("stopped")
