"""Models that are loaded, unloaded and swapped under load: failed requests, and growth of memory.

A cycle: `load` of a model over REST, an answer of it, `unload`; then the pointer of another model
moves between two versions, of which only the one that is pointed at stays loaded, until that one
answers. Clients ask that other model all the time. Memory is looked at behind each cycle; the
figure is the median of the last tenth beside that of the second tenth.
"""

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

import flambeau
from bench.figures.verdicts import Verdict, at_most, short
from bench.front.frames import TIMEOUT_S
from bench.measured.golden_model import newest_manifest
from bench.measured.version_copy import publish_copy
from bench.peers.peer import PeerError
from bench.servers.measured_server import measured_server
from bench.servers.process_figures import resident_mebibytes
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore

SWAPPED, LOADED = "swapped", "loaded"
WIDTH = 16
CLIENTS, PAUSE_S = 4, 0.002
"""Clients of the load, and the pause of each between an answer and its next request."""
SWAP_TIMEOUT_S = 30.0
SETTINGS = ("model_control=explicit", "newest_versions=0", "store_poll_interval_s=0.05")
ASKED = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}]}
BODY, PATH = json.dumps(ASKED).encode(), f"/v2/models/{SWAPPED}/infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleFigures:
    """All cycles together."""

    cycles: int
    answered: int
    failed: int
    reasons: list[str]
    """The first failures."""
    cycle_ms: float
    """Median."""
    memory_mib: list[float]
    """Memory of the server behind each cycle."""

    def verdicts(self) -> list[Verdict]:
        """Returns the figures beside their targets."""
        name = f"{self.cycles:,} cycles of load, unload and swap, {short(self.cycle_ms)} ms each"
        load = f"failed of {self.answered + self.failed:,} requests"
        return [
            at_most(f"{name}: {load}", self.failed, 0),
            at_most(f"{name}: growth of memory", growth_percent(self.memory_mib), 1, "%"),
        ]


def growth_percent(memory_mib: Sequence[float]) -> float:
    """Returns the growth from the second tenth to the last one.

    Args:
        memory_mib: memory behind each of at least ten cycles.
    """
    tenth = len(memory_mib) // 10
    first, last = median(memory_mib[tenth : 2 * tenth]), median(memory_mib[-tenth:])
    return (last / first - 1) * 100


def measure_lifecycle(cycles: int) -> LifecycleFigures:
    """Runs the cycles.

    Args:
        cycles: at least ten.
    """
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as folder:
        store = ModelStore(folder)
        flambeau.publish(
            lambda x: 2 * x, {"x": torch.ones(2, WIDTH)}, name=SWAPPED, to=folder,
            artifacts=["onnx"],
        )  # fmt: skip
        first = newest_manifest(store, SWAPPED)
        publish_copy(store, first, store, SWAPPED)
        publish_copy(store, first, store, LOADED)
        with measured_server(folder, [SWAPPED], "", *SETTINGS) as server:
            return _run(server, store, cycles)


def _run(server: ServerProcess, store: ModelStore, cycles: int) -> LifecycleFigures:
    memory_mib: list[float] = []
    took_s: list[float] = []
    with _load(server) as (answered, failures):
        operator = _Client(server.http)
        for number in range(cycles):
            began = time.monotonic()
            _cycle(operator, store, 1 + number % 2)
            took_s.append(time.monotonic() - began)
            memory_mib.append(resident_mebibytes(server.pid))
            if number % 100 == 99:
                print(f"  {number + 1} cycles: {short(memory_mib[-1])} MiB", flush=True)
    return LifecycleFigures(
        cycles=cycles,
        answered=sum(answered),
        failed=len(failures),
        reasons=failures[:20],
        cycle_ms=median(took_s) * 1000,
        memory_mib=memory_mib,
    )


def _cycle(operator: "_Client", store: ModelStore, version: int) -> None:
    """Loads and unloads one model, and swaps the other one to a version.

    Raises:
        PeerError: an act failed, or the version does not answer in time.
    """
    operator.post(f"/v2/repository/models/{LOADED}/load")
    operator.post(f"/v2/models/{LOADED}/infer", BODY)
    operator.post(f"/v2/repository/models/{LOADED}/unload")
    store.promote(SWAPPED, version, why="a benchmark's cycle")
    until = time.monotonic() + SWAP_TIMEOUT_S
    while f'"model_version":"{version}"'.encode() not in operator.post(PATH, BODY):
        if time.monotonic() > until:
            raise PeerError(f"version {version} does not answer after {SWAP_TIMEOUT_S:g} s")
        time.sleep(PAUSE_S)


class _Client:
    """A connection that is kept."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)

    def post(self, path: str, body: bytes = b"") -> bytes:
        """Returns the body of the answer.

        Raises:
            PeerError: it is no success, or none came.
        """
        try:
            self._connection.request("POST", path, body)
            answer = self._connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise PeerError(f"{path}: {error!r}") from error
        if answer.status != 200:
            raise PeerError(f"{path}: HTTP {answer.status}: {said[:300]!r}")
        return said


@contextmanager
def _load(server: ServerProcess) -> Iterator[tuple[list[int], list[str]]]:
    """Asks the swapped model until the block ends; gives answers by client, and all failures."""
    stop = threading.Event()
    answered, failures = [0] * CLIENTS, list[str]()

    def ask(place: int) -> None:
        client = _Client(server.http)
        while not stop.wait(PAUSE_S):
            try:
                client.post(PATH, BODY)
            except PeerError as error:
                failures.append(str(error))
            else:
                answered[place] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(ask, place) for place in range(CLIENTS)]
        try:
            yield answered, failures
        finally:
            stop.set()
        for one in running:
            one.result()
