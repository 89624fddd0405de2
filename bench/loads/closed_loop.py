"""Closed-loop load: each client sends its next request after the response to the last one.

`wrk` and `h2load` generate it where they are installed, because they use little CPU (see
`bench/peers/load.py`); otherwise a generator in Python does, and its name is in the results.
"""

import asyncio
import contextlib
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import uvloop

from bench.figures.verdicts import MISSING, percentile
from bench.loads.shooter import Outcome, Shooter
from bench.loads.shooters import open_shooter
from bench.peers import load as programs
from bench.peers.load import Load
from bench.peers.peer import Ask, Form
from flambeau.server_process import ServerProcess

WARM_UP_S = 2
PYTHON = "Python"
"""Name of the generator that is always available."""


def generator_of(form: Form) -> str:
    """Returns the program that generates the load of a protocol on this machine."""
    program = "h2load" if form is Form.GRPC else "wrk"
    return program if shutil.which(program) else PYTHON


def closed_loop(
    server: ServerProcess, form: Form, ask: Ask, clients: int, seconds: int, answer_bytes: int
) -> Load:
    """Loads a server with one canned request, repeated.

    Args:
        server: server under load.
        form: protocol and body of the request.
        ask: request to repeat.
        clients: requests in flight.
        seconds: duration.
        answer_bytes: size of a correct response, the gRPC prefix included.

    Raises:
        PeerError: no request was answered.
    """
    match generator_of(form):
        case "wrk":
            return programs.load_rest(server.http, [ask], clients, seconds)
        case "h2load":
            return programs.load_grpc(server.grpc, ask, clients, seconds, answer_bytes)
    return python_load(server, form, [ask], clients, seconds)


def warm_up(server: ServerProcess, form: Form, ask: Ask, clients: int, answer_bytes: int) -> None:
    """Loads a server for about a second; needs no response, since a slow batch may take longer."""
    with contextlib.suppress(programs.NothingAnsweredError):
        closed_loop(server, form, ask, clients, WARM_UP_S, answer_bytes)


def different_load(
    server: ServerProcess, form: Form, asks: Sequence[Ask], clients: int, seconds: int
) -> Load:
    """Loads a server with different requests in rotation.

    Args:
        server: server under load.
        form: protocol and body of the requests; `h2load` can only repeat one request.
        asks: requests to rotate through.
        clients: requests in flight.
        seconds: duration.

    Raises:
        PeerError: no request was answered.
    """
    if form is not Form.GRPC and generator_of(form) != PYTHON:
        return programs.load_rest(server.http, asks, clients, seconds)
    return python_load(server, form, asks, clients, seconds)


def python_load(
    server: ServerProcess, form: Form, asks: Sequence[Ask], clients: int, seconds: float
) -> Load:
    """Loads a server from this process; unlike the programs it can send different requests.

    Args:
        server: server under load.
        form: protocol and body of the requests.
        asks: requests to rotate through.
        clients: requests in flight.
        seconds: duration.
    """
    return _all_clients(server, form, asks, clients, seconds).load


def steady_load(
    server: ServerProcess, form: Form, ask: Ask, clients: int, seconds: float
) -> tuple[Load, float]:
    """Loads a server whose batches take long with one request, repeated.

    Args:
        server: server under load.
        form: protocol and body of the request.
        ask: request to repeat.
        clients: requests in flight.
        seconds: duration.

    Returns:
        The clients' figures, with responses a second from batch to batch (see `steady_rate`), or
        over the whole load if there were too few.
    """
    done = _all_clients(server, form, [ask], clients, seconds)
    load, rate = done.load, steady_rate(done.answered_at, clients)
    return load, load.answered / load.duration_s if math.isnan(rate) else rate


def steady_rate(times_s: Sequence[float], clients: int) -> float:
    """Returns responses a second between the ends of two batches, one early and one late.

    A fixed duration would never count the last batch in flight, a good part of a load of a few
    seconds; and the first batches are not full.

    Args:
        times_s: arrival time of each response, ascending.
        clients: requests in flight; the responses to a whole batch arrive close together.

    Returns:
        The rate; NaN if there were too few responses.
    """
    times = np.asarray(times_s)
    if len(times) < 6 * clients:
        return MISSING
    gaps = np.diff(times)  # gap i follows response i
    first = 2 * clients + int(np.argmax(gaps[2 * clients : 4 * clients]))
    last = len(gaps) - 2 * clients + int(np.argmax(gaps[-2 * clients :]))
    return float((last - first) / (times[last] - times[first]))


def _all_clients(
    server: ServerProcess, form: Form, asks: Sequence[Ask], clients: int, seconds: float
) -> "_Clients":
    async def run() -> _Clients:
        shooter = open_shooter(form, server.http, server.grpc, asks)
        try:
            done = _Clients(shooter, clients, seconds)
            await done.run()
            return done
        finally:
            await shooter.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


@dataclass(slots=True)
class _Clients:
    """Concurrent clients of one shooter."""

    shooter: Shooter
    clients: int
    seconds: float
    latencies_s: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    """Times of responses received while all clients were sending."""
    failed: int = 0
    sent: int = 0
    took_s: float = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        ended = [loop.create_future() for _ in range(self.clients)]
        for one in ended:
            self._next(one, started + self.seconds)
        await asyncio.gather(*ended)
        self.took_s = time.monotonic() - started

    @property
    def load(self) -> Load:
        return Load(
            answered=len(self.latencies_s),
            failed=self.failed,
            duration_s=self.took_s,
            p50_ms=percentile(self.latencies_s, 50) * 1000,
            p99_ms=percentile(self.latencies_s, 99) * 1000,
        )

    def _next(self, ended: "asyncio.Future[None]", stop_at: float) -> None:
        """Sends one client's next request, until the load ends."""
        began = time.monotonic()
        if began >= stop_at:
            ended.set_result(None)
            return

        def answered(outcome: Outcome, body: bytes) -> None:
            if outcome is Outcome.ANSWERED:
                now = time.monotonic()
                self.latencies_s.append(now - began)
                if now < stop_at:
                    self.answered_at.append(now)
            else:
                self.failed += 1
            self._next(ended, stop_at)

        self.sent += 1
        self.shooter.send(self.sent, answered)
