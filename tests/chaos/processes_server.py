"""A server of several processes that may be killed, and its counters, which never fall."""

import http.client
import os
import signal
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.peers.process_tree import parse_stat
from bench.servers.process_figures import EDGE, RUNS_MODELS, ProcessFigures, processes_of
from model_store.host.own_process import own_command
from tests.chaos.endings import Endings
from tests.fixtures.redis_servers import until_true
from tests.fixtures.servers import ROOT, serving

FIRST_PORT = 18_100
START_TIMEOUT_S = 60.0
REPLACED_WITHIN_S = 30.0
SCRAPE_EVERY_S = 0.25
ROUNDING = 1e-6
"""Sums of seconds differ so little by the order of their terms."""


class ProcessesServer:
    """`flambeau serve --processes N`, which keeps its ports across restarts.

    Attributes:
        endings: kills of processes that may have held connections, and drains.
        https, gateways: where callers send requests, and whose `endings` they compare.

    Args:
        store: folder of the model store.
        log: file of its log.
        edges: number of edges.
    """

    def __init__(self, store: Path, log: Path, edges: int) -> None:
        http, grpc, metrics = (f"127.0.0.1:{FIRST_PORT + n}" for n in range(3))
        self.https, self.grpc, self.metrics = [http], grpc, metrics
        self.gateways = [self]
        self.endings = Endings()
        self.store, self.edges, self._log = store, edges, log
        ports = [f"--{kind}-port={FIRST_PORT + n}" for n, kind in enumerate(_PORTS)]
        arguments = serving(store, *ports, f"--processes={edges}", newest_versions=0)
        self._command = own_command("flambeau", *arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it, and waits until all its processes serve."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_until_whole(START_TIMEOUT_S)

    def pids(self, kind: str) -> list[int]:
        """Returns the running processes of a kind; see `bench.servers.process_figures`."""
        return [one.pid for one in processes_of(self.pid) if one.name.startswith(kind)]

    def wait_until_whole(self, timeout_s: float = REPLACED_WITHIN_S) -> None:
        """Waits until every process runs, and a request to `/v2/health/ready` is answered so."""

        def is_whole() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the server ended with {self._process.poll()}"
            kinds = Counter(one.name.partition(" ")[0] for one in processes_of(self.pid))
            return kinds[EDGE] == self.edges and kinds["model"] == 1 and self._is_ready()

        until_true(is_whole, timeout_s, every_s=0.05)

    def _is_ready(self) -> bool:
        with suppress(OSError):
            url = f"http://{self.metrics}/v2/health/ready"
            with urllib.request.urlopen(url, timeout=5) as reply:
                return bool(reply.status == 200)
        return False

    def send(self, number: signal.Signals, pid: int, *, has_connections: bool = True) -> None:
        """Sends a signal to a process, if it still runs; a kill of an edge ends connections."""
        is_kill = number is signal.SIGKILL
        with self.endings.one() if is_kill and has_connections else nullcontext():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            if is_kill:
                until_true(lambda: not is_running(pid))

    def kill_supervisor(self) -> None:
        """Kills the supervisor alone, and waits until the processes that it leaves have ended."""
        assert self._process is not None
        left = [*self.pids(EDGE), *self.pids(RUNS_MODELS)]
        with self.endings.one():
            self.send(signal.SIGKILL, self.pid)
            self._process.wait()
            until_true(lambda: not any(map(is_running, left)))

    def drain(self) -> int:
        """Sends SIGTERM, and waits. Returns its exit code."""
        assert self._process is not None
        left = [one.pid for one in processes_of(self.pid)]
        with self.endings.one():  # a connection may close while a request is on its way to it
            self._process.send_signal(signal.SIGTERM)
            code = self._process.wait(60)
        alive = list(filter(is_running, left))
        assert not alive, f"processes {alive} outlived the server"
        return code

    def kill(self) -> None:
        """Ends all its processes, whatever their state."""
        if self._process is not None and self._process.poll() is None:
            for one in processes_of(self.pid):
                self.send(signal.SIGKILL, one.pid)
            self._process.wait()

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Returns the samples of one scrape; of counters and histograms with their labels.

        Raises:
            OSError: the scrape was refused, or its answer cut off by the end of the process.
        """
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as page:
            if "content-length" not in page.headers:
                raise ConnectionResetError("only the status line of the metrics has come")
            text = page.read().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            if family.type in ("counter", "histogram") or family.name == "flambeau_link_bytes"
            for sample in family.samples
        }

    def idle_figures(self) -> tuple[list[ProcessFigures], float]:
        """Returns the processes, and the bytes of blocks in shared memory."""
        found = self.samples()
        return processes_of(self.pid), found["flambeau_link_bytes", frozenset()]


_PORTS = ("http", "grpc", "metrics")


def is_running(pid: int) -> bool:
    """Returns False of a process that has ended, whether its parent knows or not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return not parse_stat(Path(f"/proc/{pid}/stat").read_text()).ended
    return False


class CounterWatch:
    """Scrapes a server again and again, and tells which of its counters fell.

    Attributes:
        fallen: what fell, one line each.
        scrapes: number of answered scrapes.
    """

    def __init__(self, server: ProcessesServer) -> None:
        self._server = server
        self._over = threading.Event()
        self.fallen: list[str] = []
        self.scrapes = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches until the block ends."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        last: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        of = 0
        while not self._over.wait(SCRAPE_EVERY_S):
            pid = self._server.pid
            try:
                found = self._server.samples()
            except (OSError, ValueError, http.client.IncompleteRead):
                continue  # it is being restarted, or stopped
            if pid != self._server.pid:
                continue
            self.compare(last if of == pid else {}, found)
            last, of = found, pid
            self.scrapes += 1

    def compare(
        self,
        before: dict[tuple[str, frozenset[tuple[str, str]]], float],
        now: dict[tuple[str, frozenset[tuple[str, str]]], float],
    ) -> None:
        """Records the counters that have fallen, or are gone, between two scrapes."""
        for (name, labels), value in before.items():
            if name != "flambeau_link_bytes" and now.get((name, labels), -1.0) < value - ROUNDING:
                shown = ", ".join(f"{key}={word}" for key, word in sorted(labels))
                self.fallen.append(f"{name} {shown}: {value:g}, then {now.get((name, labels))}")
