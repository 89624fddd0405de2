"""The model process of a server of several processes: store, reconciler, workers; no ports.

It is started by the supervisor, with settings on standard input, and as arguments the descriptor of
the channel to the supervisor, and the folder of the store. It ends when the supervisor says so; or
when that has ended, once the edges have drained. Signals to the whole group are for them: it
outlives them.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from importlib.metadata import version as installed_version
from typing import Any

import prometheus_client
import uvloop

from model_store.errors import StoreError
from model_store.storage.mounted_folder import FolderIdentity, known_folder
from model_store.store import ModelStore
from services.access.link_rates import SpentRates
from services.inference.loading.configured_policy import serving_policy
from services.inference.loading.policy import ServingPolicy
from services.inference.loading.reconciler import Reconciler
from services.inference.model_control import ModelControl
from services.inference.start_checks import check_machine
from services.inference.store_view import serving_store
from services.process import (
    STOPPING,
    end_past_held_threads,
    freeze_garbage,
    process_name,
    take_signals,
)
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.shared_memory.edge_links import EdgeLinks
from services.rollouts.controller import RolloutController
from services.settings import ConfigError
from services.standalone.config import ServerConfig
from services.standalone.control import Control
from services.telemetry.logs import configure_logs
from services.telemetry.loop_lag import sampling_lag
from services.telemetry.merged_metrics import encode_metrics
from services.telemetry.metrics import Metrics
from services.tracing.setting import apply_change, open_tracer


class ModelProcess:
    """The parts of the model process."""

    def __init__(self, config: ServerConfig, store: ModelStore, policy: ServingPolicy) -> None:
        self._store = store
        version, directory = installed_version("flambeau"), Directory()
        self._metrics = Metrics(version, with_triton_names=config.triton_metrics)
        queue = MemoryQueue(config.max_queue_depth)
        control = ModelControl(policy.control, policy.models)
        self._links = EdgeLinks(
            queue, directory, SpentRates().spend, self._look_for_edges, control.act
        )
        self._metrics.link_bytes.set_function(lambda: self._links.used_bytes)
        self._tracer = open_tracer(config, "inference", self._metrics)
        self._reconciler = Reconciler(
            serving_store(config, store, self._metrics), self._links, directory, self._metrics,
            policy, tracer=self._tracer, control=control,
        )  # fmt: skip
        self._rollouts = RolloutController(
            store, directory, self._metrics.rollouts, process_name("model")
        )
        self._stop = asyncio.Event()
        self._is_orphan = self._is_started = False
        self._control: Control

    async def run(self, end: socket.socket) -> None:
        """Serves until it is told to stop."""
        self._control = Control(end, self._take, self._orphaned)
        with (
            sampling_lag(self._metrics.loop_lag_seconds.labels()),
            self._tracer.exporting() if self._tracer else contextlib.nullcontext(),
        ):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rollouts.run(self._stop), name="rollouts")
                await self._reconciler.run(self._stop, self._after_pass)
        self._links.end()

    def _after_pass(self) -> None:
        look = self._reconciler.look
        self._links.look(look)
        if look.started and not self._is_started:
            freeze_garbage()
            self._is_started = self._control.send_file("up", self._store.url, self._links.view())

    def _take(self, kind: str, content: Any, descriptor: int) -> None:
        if kind == "link":
            if descriptor >= 0:  # else the edge's end closes, and it asks again
                self._links.attach(socket.socket(fileno=descriptor))
        elif kind == "collect":
            self._control.send_file("metrics", content, encode_metrics(self._metrics.registry))
        elif kind == "count":
            self._control.send_file("counted", content, self._metrics.figures.encoded())
        elif kind == "settings":
            apply_change(content, self._tracer)
        elif kind == "stop":
            self._end(abandon=content)

    def _end(self, *, abandon: bool) -> None:
        if abandon:
            self._reconciler.abandon_runs()
        self._links.end()
        self._stop.set()

    def _orphaned(self) -> None:
        self._is_orphan = True
        self._look_for_edges()

    def _look_for_edges(self) -> None:
        """Ends if the supervisor and all edges have ended."""
        if self._is_orphan and not self._links.count and not self._stop.is_set():
            self._end(abandon=True)


async def _serve(config: ServerConfig, end: socket.socket, known: FolderIdentity | None) -> int:
    try:
        check_machine(config)
        store = ModelStore(config.store, when_missing="await", known=known)
        process = ModelProcess(config, store, serving_policy(config))
    except (ConfigError, StoreError) as error:
        kind = "ConfigError" if isinstance(error, ConfigError) else "StoreError"
        Control(end, lambda *_: None, lambda: None).send("failed", [kind, str(error)])
        return 1
    await process.run(end)
    return 0


def main(arguments: list[str]) -> int:
    """Runs the model process. Returns its exit code."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    take_signals()
    config = ServerConfig.model_validate_json(sys.stdin.buffer.read())
    configure_logs(config.log_level)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    end, known = socket.socket(fileno=int(arguments[0])), known_folder(arguments[1])
    code = uvloop.run(_serve(config, end, known))
    end_past_held_threads()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
