"""One run of a server of several processes: steady load, one fault after the other, the ledger."""

import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bench.peers.process_tree import tree_of
from bench.servers.process_figures import EDGE, ProcessFigures
from tests.chaos.callers import MODEL, SCALE, Callers
from tests.chaos.chaos import QUIET_S, Verdict, wait_until_answered
from tests.chaos.grpc_callers import ECHO, GrpcCallers
from tests.chaos.ledger import Ledger
from tests.chaos.processes_faults import FAULTS, Fault
from tests.chaos.processes_server import CounterWatch, ProcessesServer
from tests.fixtures import onnx_models

EDGES, CALLERS = 2, 4
NAMED = {
    503: ("the model process ended while", "the model process is being started", "shutting down",
          "not ready"),
}  # fmt: skip
"""Errors allowed after a death: the load alone reaches no limit and no deadline."""
IDLE_WITHIN_S = 10.0
SPARE_DESCRIPTORS = 2
"""Those that a process opens when it is first used."""


def run_processes_chaos(seconds: float, seed: int, faults: tuple[Fault, ...] = FAULTS) -> Verdict:
    """Runs chaos; the arguments are as for `run_chaos`."""
    chance, requests, calls = random.Random(seed), Ledger(NAMED), Ledger(NAMED)
    happened = Counter[str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        store = folder / "store"
        for _ in range(2):
            onnx_models.publish(str(store), MODEL, onnx_models.linear(SCALE))
        onnx_models.publish(str(store), ECHO, onnx_models.echo("FP32"))
        server = ProcessesServer(store, folder / "server.log", EDGES)
        stack.callback(server.kill)
        server.start()
        first, _ = server.idle_figures()
        watch = CounterWatch(server)
        with (
            watch.watching(),
            Callers(server, requests, CALLERS, seed),
            GrpcCallers(server, calls, CALLERS, seed),
        ):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(chance.uniform(0, 2 * QUIET_S))
                fault = chance.choice(faults)
                happened[fault.__name__] += 1
                began = time.monotonic()
                fault(server, chance)
                print(f"{fault.__name__}: {time.monotonic() - began:.1f} s, REST "
                      f"{dict(requests.counts())}, gRPC {dict(calls.counts())}",
                      flush=True)  # fmt: skip
            answered = [wait_until_answered(ledger, 100) for ledger in (requests, calls)]
        broken = [*requests.broken(), *calls.broken(), *watch.fallen, *_left(server, first)]
        if not watch.scrapes:
            broken.append("no scrape was answered")
        code = server.drain()
    return Verdict(
        broken, requests.counts() + calls.counts(), None, happened, min(answered), [code]
    )


def _left(server: ProcessesServer, first: list[ProcessFigures]) -> list[str]:
    """Returns what processes that have ended left behind; within the time that freeing takes."""
    give_up_at = time.monotonic() + IDLE_WITHIN_S
    while True:
        now, link_bytes = server.idle_figures()
        found = [f"a zombie of process {state.pid}" for state in tree_of(server.pid) if state.ended]
        if link_bytes:
            found.append(f"{link_bytes:g} bytes of shared memory are taken, and nothing runs")
        allowed = {one.name: one.descriptors + SPARE_DESCRIPTORS for one in first}
        for one in now:
            links = 1 if one.name.startswith(EDGE) else EDGES if one.name.startswith("model") else 0
            if one.links != links:
                found.append(f"{one.name} maps {one.links} shared memories, not {links}")
            if one.descriptors > allowed.get(one.name, 0):
                found.append(
                    f"{one.name} has {one.descriptors} descriptors, not {allowed.get(one.name)}"
                )
        if not found or time.monotonic() > give_up_at:
            return found
        time.sleep(0.1)
