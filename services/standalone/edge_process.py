"""One edge of a server of several processes: the ports, admission and accounting; no models.

It is started by the supervisor: settings on standard input, and three descriptors as arguments, the
channel to the supervisor and the page of counts, with its slot and the number of edges; and the
table of shared memory regions; and as the last one the folder of the store.

It drains when the supervisor says so or has ended, and at SIGTERM or SIGINT.
"""

import asyncio
import errno
import logging
import os
import socket
import sys
import time
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any

import prometheus_client
import uvloop

from model_store.storage.mounted_folder import FolderIdentity, known_folder
from model_store.store import ModelStore
from services.access.link_rates import LinkRates
from services.errors import QueueUnavailableError
from services.gateway.edge_port import Door
from services.gateway.front import Front, Listening
from services.gateway.payload_settings import open_sampler
from services.ports import PortError
from services.process import end_past_held_threads, process_name, stop_on_signals
from services.queueing.directory import Directory
from services.queueing.fleet_directory import FleetDirectory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.shared_memory.messages import MissedMessage, SpentMessage
from services.queueing.shared_memory.model_link import ModelLink
from services.queueing.shared_memory.shared_counts import SharedCounts
from services.readiness import Look
from services.registry.callers.deployment_callers import DeploymentCallers, ReportSender
from services.registry.callers.recent_callers import RecentCallers
from services.registry_server.opening import holds, open_registry
from services.rollouts.controller import RolloutController
from services.settings import ConfigError
from services.shared_rounds import SharedRounds
from services.standalone.config import ServerConfig
from services.standalone.control import Control, read_file
from services.standalone.report_board import EdgeBoard
from services.telemetry.logs import configure_logs
from services.telemetry.merged_metrics import encode_metrics
from services.telemetry.metrics import Metrics
from services.telemetry.model_figures import Figures, added, decode_figures
from services.tracing.setting import Change, open_tracer

logger = logging.getLogger("flambeau.server")

LINK_AGAIN_S = 1.0
"""Pause after a link that failed or broke at once."""
FIGURES_WITHIN_S = 5.0
"""Time for the figures of all processes; the supervisor gives up a busy one sooner."""
MODEL_PROCESS_ENDED = "the model process has ended, and another is being started"


@dataclass(frozen=True, slots=True)
class EdgePlace:
    """The place of an edge, and what it shares with the other processes of the server."""

    slot: int
    """Its number among the edges."""
    edges: int
    """Number of edges."""
    regions: int
    """Descriptor of the table of shared memory regions."""
    folder: FolderIdentity | None
    """The folder of the model store as the supervisor opened it; None for a bucket."""


class EdgeProcess:
    """The parts of one edge.

    Args:
        config: its share of the server's settings.
        end: channel to the supervisor.
        counts: requests in flight of all edges.
        place: its place among the edges, and what they share.

    Raises:
        ConfigError: as `Front`.
    """

    def __init__(
        self,
        config: ServerConfig,
        end: socket.socket,
        counts: SharedCounts,
        place: EdgePlace,
    ) -> None:
        version = installed_version("flambeau")
        self._counts, self._slot = counts, place.slot
        self._metrics = Metrics(version, with_triton_names=config.triton_metrics)
        directory = Directory()
        self._queue = MemoryQueue(config.max_queue_depth)
        self._asked, self._changed = asyncio.Event(), asyncio.Event()
        self._looks: list[Look] = []
        """Those that are not applied yet: the ports are not open."""
        self._is_listening = False
        self._attached_at = 0.0
        self._counted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._figures = SharedRounds(self._ask_figures, 0.0)
        self._control = Control(end, self._take, self._drain)
        rates = LinkRates(lambda spent: self._link.send(SpentMessage(spent)))
        self._link = ModelLink(
            config.buffer_limit_bytes, self._look, self._lost, rates.learn, self._count
        )
        self._metrics.link_bytes.set_function(lambda: self._link.used_bytes)
        self._link.fleet = FleetDirectory(
            directory, self._queue, lambda _: self._link, forgets=True
        )
        directory.missing = lambda lane, _: self._link.send(MissedMessage(lane))
        self._tracer = open_tracer(config, "gateway", self._metrics)
        self._settings_waits: list[asyncio.Event] = []
        store = ModelStore(config.store, when_missing="await", known=place.folder)
        name = process_name("edge")
        callers = RecentCallers() if config.has_registry else None
        self._board = EdgeBoard(self._control)
        self._sender = None if callers is None else ReportSender(self._board, name, callers)
        registry = None
        if config.has_registry:
            told = DeploymentCallers("at this server", callers, self._board, name)
            registry = open_registry(config, store, partial(holds, directory), told)
        self._front = Front(
            config, version, self._metrics, directory, self._queue,
            self._is_up,
            tracer=self._tracer,
            rates=rates if config.asks_for_credentials else None,
            sampler=open_sampler(config, directory, self._metrics, store.storage),
            processes=place.edges,
            figures=self._all_figures,
            tell=self._tell_settings,
            control=self._link.act if config.model_control == "explicit" else None,
            region_table=place.regions,
            door=self._open_door(config, store, directory),
            registry=registry,
            callers=callers,
        )  # fmt: skip
        self._rollouts = RolloutController(
            store, directory, self._metrics.rollouts, name,
            self._front.traffic.counts, controls=False,
        )  # fmt: skip

    def _open_door(
        self, config: ServerConfig, store: ModelStore, directory: Directory
    ) -> Door | None:
        """Returns the API in place of the usual one, if the settings name one."""
        if not config.torchserve:
            return None
        from services.standalone.torchserve_door import open_door

        return open_door(config, store, directory, self._link.act)

    async def run(self) -> None:
        """Serves until it is asked to drain, and drains.

        Raises:
            PortError: a port is in use.
        """
        front, drained = self._front, asyncio.Event()
        self._control.send("link")
        # Connections come as soon as the ports are open, and the other edges may serve already.
        while not self._looks and not self._asked.is_set():
            self._changed.clear()
            await self._changed.wait()
        async with front.listening():
            stop_on_signals(self._asked)
            self._is_listening = True
            self._apply_looks()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rollouts.run(drained), name="rollouts")
                sending = None
                if self._sender is not None:
                    sending = tasks.create_task(self._sender.run(), name="callers")
                await self._asked.wait()
                await front.begin_drain()
                if not await front.drain():
                    self._control.send("unanswered")
                await front.close()
                drained.set()
                if sending is not None:
                    sending.cancel()
        self._link.close()

    def fail(self, error: Exception) -> None:
        """Tells the supervisor why it cannot start."""
        self._control.send("failed", [type(error).__name__, str(error)])

    def _take(self, kind: str, content: Any, descriptor: int) -> None:
        if kind == "link":
            self._attach(descriptor)
        elif kind == "drain":
            self._drain()
        elif kind == "collect":
            self._control.send_file("metrics", content, encode_metrics(self._metrics.registry))
        elif kind == "count":
            self._control.send_file("counted", content, self._metrics.figures.encoded())
        elif kind == "reports" and descriptor >= 0:
            self._board.take(content, descriptor)
        elif kind == "settings":
            self._front.settings.take(content)
            while self._settings_waits:
                self._settings_waits.pop().set()
        elif kind == "figures" and descriptor >= 0:
            data = read_file(descriptor)
            if not self._counted.done():
                self._counted.set_result(data)

    def _is_up(self, _: Listening) -> None:
        self._control.send("up")

    def _attach(self, descriptor: int) -> None:
        """Begins with a model process; asks again if no descriptor or memory is free just now."""
        self._attached_at = time.monotonic()
        try:
            if descriptor < 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._link.attach(socket.socket(fileno=descriptor))
        except OSError as error:
            logger.error(
                "no link to the model process; trying again",
                extra={"error": str(error), "pause_s": LINK_AGAIN_S},
            )
            asyncio.get_running_loop().call_later(LINK_AGAIN_S, self._control.send, "link")

    async def _all_figures(self, model: str) -> Figures:
        """Returns the figures of all processes: of a model, or of all for an empty name.

        Raises:
            QueueUnavailableError: the supervisor does not answer.
        """
        try:
            async with asyncio.timeout(FIGURES_WITHIN_S):
                figures = decode_figures(await self._figures.answer())
        except TimeoutError:
            raise QueueUnavailableError(
                f"the processes of this server gave no statistics within {FIGURES_WITHIN_S:g} s; "
                "try again"
            ) from None
        return added([[one for one in figures if not model or one.model == model]])

    async def _ask_figures(self) -> bytes:
        self._counted = asyncio.get_running_loop().create_future()
        self._control.send("figures")
        async with asyncio.timeout(FIGURES_WITHIN_S):
            return await self._counted

    async def _tell_settings(self, change: Change) -> None:
        """Changes settings of all processes, this one included.

        Raises:
            QueueUnavailableError: the supervisor does not answer.
        """
        applied = asyncio.Event()
        self._settings_waits.append(applied)
        self._control.send("settings", change)
        try:
            async with asyncio.timeout(FIGURES_WITHIN_S):
                await applied.wait()
        except TimeoutError:
            raise QueueUnavailableError(
                "the processes of this server did not take the settings in time; try again"
            ) from None

    def _drain(self) -> None:
        self._asked.set()
        self._changed.set()

    def _look(self, look: Look) -> None:
        self._looks.append(look)
        self._changed.set()
        if self._is_listening:
            self._apply_looks()

    def _apply_looks(self) -> None:
        looks, self._looks = self._looks, []
        for look in looks[-1:]:
            self._front.look(look)
            self._control.send("ready", self._front.why_not_ready())

    def _lost(self) -> None:
        self._look(Look(started=False, fault=MODEL_PROCESS_ENDED))
        is_young = time.monotonic() - self._attached_at < LINK_AGAIN_S
        pause_s = LINK_AGAIN_S if is_young else 0.0  # the other end may be out of descriptors
        asyncio.get_running_loop().call_later(pause_s, self._control.send, "link")

    def _count(self) -> None:
        self._front.limit_by_others(self._counts.set(self._slot, self._queue.unanswered))


async def _serve(config: ServerConfig, end: socket.socket, counts: int, place: EdgePlace) -> int:
    try:
        edge = EdgeProcess(config, end, SharedCounts(counts, place.edges), place)
    except ConfigError as error:
        Control(end, lambda *_: None, lambda: None).send("failed", ["ConfigError", str(error)])
        return 2
    try:
        await edge.run()
    except PortError as error:
        edge.fail(error)
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Runs the edge. Returns its exit code."""
    config = ServerConfig.model_validate_json(sys.stdin.buffer.read())
    control, counts, slot, edges, regions = map(int, arguments[:-1])
    place = EdgePlace(slot, edges, regions, known_folder(arguments[-1]))
    configure_logs(config.log_level)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    code = uvloop.run(_serve(config, socket.socket(fileno=control), counts, place))
    os.close(counts)
    end_past_held_threads()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
