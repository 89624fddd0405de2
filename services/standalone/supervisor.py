"""Runs a server as several processes: starts the model process and the edges, and replaces them.

It holds no request and no model. It creates a missing folder of the store, which its processes
never do, since they may start again while the volume is not mounted. It reserves the ports, which
the edges share; hands each edge one
end of a socket pair whose other end the model process gets, whenever the edge asks; answers the
metrics port, with the metrics of all processes together; and prints what is served, once.

Stop (SIGTERM or SIGINT): the edges drain, as a single process does; then the model process ends.
Processes that have no request yet are ended at once. A second signal ends all at once. A process
that ends by itself is replaced at once, or after a pause if it had only begun.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry

from model_store.errors import StoreError
from model_store.host.own_process import own_command
from model_store.storage.mounted_folder import folder_argument
from model_store.storage.storage import Storage, folder_of
from services.gateway.front import Listening
from services.gateway.payload_settings import make_sample_folder
from services.gateway.shared_regions.region_table import make_table
from services.ports import PortError, metrics_server, reserve
from services.process import STOPPING, blocked_signals
from services.queueing.fleet import fleet_view
from services.queueing.shared_memory.messages import View, decode_view
from services.queueing.shared_memory.shared_counts import SharedCounts, make_counts
from services.settings import ConfigError
from services.shared_rounds import SharedRounds
from services.standalone.config import ServerConfig
from services.standalone.control import Control, make_file, read_file
from services.standalone.report_board import KeptReports
from services.telemetry.merged_metrics import (
    MergedCollector,
    MetricFamily,
    decode_metrics,
    encode_metrics,
    lasting,
    merged,
)
from services.telemetry.metrics import PROCESS_KINDS, SupervisorMetrics
from services.telemetry.model_figures import VersionFigures, added, decode_figures, encode_figures
from services.tracing.setting import apply_change

logger = logging.getLogger("flambeau.server")

MODEL, EDGE = PROCESS_KINDS
SETTLED_AFTER_S = 5.0
"""Age at which a process counts as one that works: an older one is replaced without a pause."""
PAUSES_S = (0.1, 0.5, 2.0, 5.0)
COUNT_PAUSE_S = 0.1
"""Pause between two rounds for the figures of the statistics calls, however many are made."""
COLLECT_WITHIN_S = 2.0
"""Time for a process to give its metrics; those of a busy one are as of the last scrape."""
_ERRORS = {error.__name__: error for error in (ConfigError, PortError, StoreError)}


class Child:
    """The place of one process, whichever runs there.

    Attributes:
        kind: `model` or `edge`.
        slot: its number among the edges; -1 of the model process.
        process: the running one, if any.
        is_up: True once it serves.
        is_open: True once it may hold requests: an edge has opened its ports.
        why_not_ready: why an edge should get no requests; empty if it should.
        wants_link: True while an edge waits for a link.
        families: its metrics as of the last scrape.
        figures: its figures of the statistics calls, as of the last one.
    """

    def __init__(self, kind: str, slot: int) -> None:
        self.kind, self.slot = kind, slot
        self.process: subprocess.Popen[bytes] | None = None
        self.control: Control | None = None
        self.is_up = self.is_open = self.wants_link = False
        self.why_not_ready = "starting"
        self.families: list[MetricFamily] = []
        self.figures: list[VersionFigures] = []
        self.started_at = 0.0
        self.failures = 0
        self.ended = asyncio.Event()


class Supervisor:
    """The processes of one server.

    Args:
        config: settings of the server.
        store: storage of the model store, if that is a folder.
        on_started: called once, when all processes serve.
    """

    def __init__(
        self,
        config: ServerConfig,
        store: Storage | None,
        on_started: Callable[[Listening], None],
    ) -> None:
        self._config = config
        self._warning = store.how_new() if store else ""
        self._folder = folder_argument(store.identity if store else None)
        self._on_started = on_started
        self._edges = [Child(EDGE, slot) for slot in range(config.edges)]
        self._model = Child(MODEL, -1)
        self._children = [self._model, *self._edges]
        self._page = make_counts()
        self._regions = make_table()
        self._counts = SharedCounts(self._page, config.edges)
        self._metrics = SupervisorMetrics()
        self._past: list[MetricFamily] = []
        """Sums of processes that have ended."""
        self._past_figures: list[VersionFigures] = []
        self._collected: dict[tuple[Child, str], asyncio.Future[None]] = {}
        """Processes that are to give their metrics or figures, by what they were asked."""
        self._figures = SharedRounds(self._count, COUNT_PAUSE_S)
        self._answers: set[asyncio.Task[None]] = set()
        self._reports = KeptReports()
        self._view: tuple[str, View] | None = None
        self._ports: dict[str, int] = {}
        self._has_started = self._draining = self._abandons = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Serves until a signal, then drains.

        Raises:
            ConfigError, PortError, StoreError: a process could not start, as it says.
        """
        config = self._config
        registry = CollectorRegistry()
        registry.register(MergedCollector(self._scrape(asyncio.get_running_loop())))
        addresses = self._addresses()
        metrics_address = addresses.pop("metrics_port")
        with contextlib.ExitStack() as stack:
            for name, (host, port) in addresses.items():
                held = stack.enter_context(reserve(host, port, name))
                self._ports[name] = held.getsockname()[1]
            self._ports["metrics_port"] = stack.enter_context(
                metrics_server(*metrics_address, registry, self._why_not_ready)
            )
            if config.torchserve:
                from services.standalone.torchserve_door import fix_ports

                fix_ports(config, self._ports)
            stack.enter_context(self._signals())
            try:
                for child in self._children:
                    self._start(child)
                asked: asyncio.Future[Any] = asyncio.ensure_future(self._asked.wait())
                await asyncio.wait([asked, self._failed], return_when=asyncio.FIRST_COMPLETED)
                if self._failed.done():
                    self._failed.result()
                await self._drain()
            finally:
                self._kill_all()
        logger.info("stopped")

    def _addresses(self) -> dict[str, tuple[str, int]]:
        """Returns the addresses of the ports, by setting."""
        config = self._config
        if config.torchserve:
            from services.standalone.torchserve_door import addresses_of

            return addresses_of(config)
        ports = ("http_port", "grpc_port", "metrics_port")
        return {name: (config.host, getattr(config, name)) for name in ports}

    async def _drain(self) -> None:
        logger.info("draining")
        self._draining = True
        for edge in self._edges:
            self._end(edge, "drain")
        await self._all_ended(self._edges)
        self._end(self._model, "stop", self._abandons)
        await self._all_ended([self._model])

    def _end(self, child: Child, how: str, content: Any = None) -> None:
        """Has a process end; at once if it has no request yet."""
        if child.process is not None and child.control is not None:
            if child.is_open:
                child.control.send(how, content)
            else:
                child.process.kill()

    async def _all_ended(self, children: Iterable[Child]) -> None:
        for child in children:
            if child.process is not None:
                await child.ended.wait()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Drains at the first signal; at the second, ends all processes, and this one by it."""
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            if not self._asked.is_set():
                self._asked.set()
                return
            self._kill_all()
            loop.remove_signal_handler(number)
            os.kill(os.getpid(), number)

        for number in STOPPING:
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number in STOPPING:
                loop.remove_signal_handler(number)

    def _start(self, child: Child) -> None:
        """Starts a process in its place."""
        config = self._config
        if child.kind == EDGE:
            config = config.of_edge({} if config.torchserve else self._ports)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            on_failure = stack.enter_context(contextlib.ExitStack())
            on_failure.enter_context(ours)
            settings = make_file(config.model_dump_json().encode())
            stack.callback(os.close, settings)
            arguments, passed = [str(theirs.fileno())], [theirs.fileno()]
            if child.kind == EDGE:
                arguments += [str(self._page), str(child.slot), str(len(self._edges))]
                arguments.append(str(self._regions))
                passed += [self._page, self._regions]
            arguments.append(self._folder)
            command = own_command(f"services.standalone.{child.kind}_process", *arguments)
            with blocked_signals():  # until it handles them: a service manager signals it, too
                child.process = subprocess.Popen(command, stdin=settings, pass_fds=passed)  # noqa: S603
            on_failure.pop_all()
        child.is_up = child.is_open = child.wants_link = False
        child.started_at = time.monotonic()
        child.why_not_ready = "starting"
        child.ended.clear()
        child.control = Control(ours, lambda *message: self._take(child, *message), lambda: None)
        try:
            descriptor = os.pidfd_open(child.process.pid)
        except OSError:
            self._drop(child)
            raise
        asyncio.get_running_loop().add_reader(descriptor, self._over, child, descriptor)
        self._link_all()

    def _drop(self, child: Child) -> None:
        """Ends a process that cannot be watched."""
        assert child.process is not None
        assert child.control is not None
        child.process.kill()
        child.process.wait()
        child.control.close()
        child.process = child.control = None

    def _over(self, child: Child, descriptor: int) -> None:
        """A process has ended."""
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        process, control = child.process, child.control
        assert process is not None
        assert control is not None
        code = process.wait()
        control.drain()
        control.close()
        child.process = child.control = None
        child.is_up, child.why_not_ready = False, f"the {child.kind} process is being started"
        if child.kind == EDGE:
            self._counts.set(child.slot, 0)
        self._past = merged([self._past, lasting(child.families)])
        self._past_figures = list(added([self._past_figures, child.figures]).values())
        child.families, child.figures = [], []
        for asked in ("collect", "count"):
            self._was_given(child, asked)
        child.ended.set()
        if self._draining or self._failed.done():
            return
        if not self._has_started and code:
            how = f"with status {code}" if code > 0 else f"by {signal.Signals(-code).name}"
            words = f"the {child.kind} process ended {how} as it started; its log says more"
            self._fail("ConfigError", words)
            return
        self._metrics.restarts.labels(child.kind).inc()
        is_young = time.monotonic() - child.started_at < SETTLED_AFTER_S
        child.failures = child.failures + 1 if is_young else 0
        pause_s = PAUSES_S[min(child.failures, len(PAUSES_S)) - 1] if is_young else 0.0
        logger.error(
            "a process has ended; starting another",
            extra={"kind": child.kind, "pid": process.pid, "code": code, "pause_s": pause_s},
        )
        asyncio.get_running_loop().call_later(pause_s, self._start_again, child)

    def _start_again(self, child: Child) -> None:
        if self._draining or self._failed.done():
            return
        try:
            self._start(child)
        except OSError as error:  # no memory, descriptor or process is left just now
            logger.error(
                "a process cannot be started; trying again",
                extra={"kind": child.kind, "error": str(error), "pause_s": PAUSES_S[-1]},
            )
            asyncio.get_running_loop().call_later(PAUSES_S[-1], self._start_again, child)

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None:
                child.process.kill()
                child.process.wait()

    def _take(self, child: Child, kind: str, content: Any, descriptor: int) -> None:
        if kind == "link":
            child.wants_link = True
            self._link_all()
        elif kind == "ready":
            child.why_not_ready, child.is_open = content, True
        elif kind == "up":
            child.is_up = child.is_open = True
            if child is self._model:
                self._view = content, decode_view(read_file(descriptor))
            self._look_whether_started()
        elif kind in ("metrics", "counted", "report") and descriptor < 0:
            logger.error("a process gave figures that got lost: no descriptor is free")
        elif kind == "metrics":
            # At once: if the process has ended meanwhile, these are the counters that stay.
            child.families = decode_metrics(read_file(descriptor))
            self._was_given(child, "collect")
        elif kind == "counted":
            child.figures = decode_figures(read_file(descriptor))
            self._was_given(child, "count")
        elif kind == "figures":
            answer = asyncio.get_running_loop().create_task(self._tell_figures(child))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        elif kind == "report":
            self._reports.put(content, read_file(descriptor))
        elif kind == "reports" and child.control is not None:
            child.control.send_file("reports", content, self._reports.of(content))
        elif kind == "settings":
            self._change_settings(content)
        elif kind == "unanswered":
            self._abandons = True
        elif kind == "failed" and not self._has_started:
            self._fail(*content)

    def _change_settings(self, change: dict[str, Any]) -> None:
        """Changes settings of all processes, and of those that replace them."""
        apply_change(change, None)
        changed = {"log_level": str(change["log_level"]).lower()} if "log_level" in change else {}
        ratio = {"trace_ratio": change["trace_ratio"]} if "trace_ratio" in change else {}
        self._config = self._config.model_copy(update={**changed, **ratio})
        for child in self._children:
            if child.control is not None:
                child.control.send("settings", change)

    def _fail(self, kind: str, words: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(_ERRORS[kind](words))

    def _link_all(self) -> None:
        """Links each edge that waits for it with the model process, if there is one."""
        model = self._model
        for edge in self._edges:
            if edge.wants_link and edge.control is not None and model.control is not None:
                try:
                    ours, theirs = socket.socketpair()
                except OSError:  # no descriptor is free just now
                    asyncio.get_running_loop().call_later(PAUSES_S[-1], self._link_all)
                    return
                edge.wants_link = False
                with ours, theirs:
                    model.control.send("link", None, theirs.fileno())
                    edge.control.send("link", None, ours.fileno())

    def _look_whether_started(self) -> None:
        if self._has_started or self._view is None or not all(c.is_up for c in self._children):
            return
        self._has_started = True
        store, view = self._view
        ports = self._ports
        addresses = self._addresses() if self._config.torchserve else {}
        served = fleet_view([view.announcement]).versions
        self._on_started(
            Listening(
                host=self._config.host,
                http_port=ports.get("http_port", 0),
                grpc_port=ports.get("grpc_port", 0),
                metrics_port=ports["metrics_port"],
                addresses={one: f"{host}:{ports[one]}" for one, (host, _) in addresses.items()},
                is_tls=bool(self._config.tls_certificate_file),
                asks_for_credentials=self._config.asks_for_credentials,
                served=[served[lane] for lane in sorted(served)],
                found=view.look,
                store=store,
                processes=f"{len(self._edges)} edge processes and a model process",
                warning=self._warning,
            )
        )

    def _why_not_ready(self) -> str:
        if self._draining:
            return "shutting down"
        reasons = [edge.why_not_ready for edge in self._edges]
        return "" if "" in reasons else "; ".join(dict.fromkeys(reasons))

    def _scrape(self, loop: asyncio.AbstractEventLoop) -> Callable[[], list[MetricFamily]]:
        """Returns the function that a scrape's thread calls for the metrics of all processes."""

        def families() -> list[MetricFamily]:
            return asyncio.run_coroutine_threadsafe(self._collect(), loop).result()

        return families

    async def _collect(self) -> list[MetricFamily]:
        await self._ask_all("collect")
        own = decode_metrics(encode_metrics(self._metrics.registry))
        return merged([*(child.families for child in self._children), own, self._past])

    async def _count(self) -> bytes:
        """Returns the figures of all processes together."""
        await self._ask_all("count")
        each = [*(child.figures for child in self._children), self._past_figures]
        return encode_figures(added(each).values())

    async def _tell_figures(self, edge: Child) -> None:
        figures = await self._figures.answer()
        if edge.control is not None:
            edge.control.send_file("figures", None, figures)

    async def _ask_all(self, what: str) -> None:
        """Asks all processes for their metrics or figures, and waits a while for them."""
        for child in self._children:
            if child.control is not None and (child, what) not in self._collected:
                self._collected[child, what] = asyncio.get_running_loop().create_future()
                child.control.send(what)
        waited = {key: one for key, one in self._collected.items() if key[1] == what}
        if waited:
            await asyncio.wait(waited.values(), timeout=COLLECT_WITHIN_S)
        for key, future in waited.items():  # the next scrape asks those again that are silent
            if self._collected.get(key) is future and not future.done():
                del self._collected[key]

    def _was_given(self, child: Child, what: str) -> None:
        """A process has given what it was asked for, or has ended."""
        waiting = self._collected.pop((child, what), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def serve(config: ServerConfig, on_started: Callable[[Listening], None]) -> None:
    """Runs the processes until SIGTERM or SIGINT.

    Args:
        config: settings of the server, for two edges at least.
        on_started: called once, after the first full scan of the store.

    Raises:
        ConfigError, PortError, StoreError: as `services.standalone.server.serve`.
    """
    store = Storage(config.store) if folder_of(config.store) else None
    make_sample_folder(config, store)
    asyncio.run(_serve(config, store, on_started))


async def _serve(
    config: ServerConfig, store: Storage | None, on_started: Callable[[Listening], None]
) -> None:
    if store and store.is_new:
        logger.warning("store created", extra={"reason": store.how_new()})
    await Supervisor(config, store, on_started).run()
