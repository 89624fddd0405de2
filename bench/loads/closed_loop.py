"""Closed-loop load: each client sends its next request when the last is answered.

`wrk` and `h2load` make it where they are installed, for they cost next to nothing (see
`bench/peers/load.py`); else a generator in Python does, and is named beside its figures.
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
"""The generator that is always there."""


def generator_of(form: Form) -> str:
    """The program that makes the load of a form here."""
    program = "h2load" if form is Form.GRPC else "wrk"
    return program if shutil.which(program) else PYTHON


def closed_loop(
    server: ServerProcess, form: Form, ask: Ask, clients: int, seconds: int, answer_bytes: int
) -> Load:
    """Loads a server with one canned request again and again.

    Args:
        server: whom to ask.
        form: how the request travels.
        ask: the request.
        clients: requests in flight.
        seconds: how long.
        answer_bytes: of a right answer, the gRPC prefix included.

    Raises:
        PeerError: nothing was answered.
    """
    match generator_of(form):
        case "wrk":
            return programs.load_rest(server.http, [ask], clients, seconds)
        case "h2load":
            return programs.load_grpc(server.grpc, ask, clients, seconds, answer_bytes)
    return python_load(server, form, [ask], clients, seconds)


def warm_up(server: ServerProcess, form: Form, ask: Ask, clients: int, answer_bytes: int) -> None:
    """Loads a server for a second or so; nothing need come of it: a slow batch may take longer."""
    with contextlib.suppress(programs.NothingAnsweredError):
        closed_loop(server, form, ask, clients, WARM_UP_S, answer_bytes)


def different_load(
    server: ServerProcess, form: Form, asks: Sequence[Ask], clients: int, seconds: int
) -> Load:
    """Loads a server with different requests, sent round and round.

    Args:
        server: whom to ask.
        form: how the requests travel; `h2load` can only send one again and again.
        asks: the requests.
        clients: requests in flight.
        seconds: how long.

    Raises:
        PeerError: nothing was answered.
    """
    if form is not Form.GRPC and generator_of(form) != PYTHON:
        return programs.load_rest(server.http, asks, clients, seconds)
    return python_load(server, form, asks, clients, seconds)


def python_load(
    server: ServerProcess, form: Form, asks: Sequence[Ask], clients: int, seconds: float
) -> Load:
    """Loads a server from this process; unlike the programs it can send different requests.

    Args:
        server: whom to ask.
        form: how the requests travel.
        asks: the requests, sent round and round.
        clients: requests in flight.
        seconds: how long.
    """
    return _all_clients(server, form, asks, clients, seconds).load


def steady_load(
    server: ServerProcess, form: Form, ask: Ask, clients: int, seconds: float
) -> tuple[Load, float]:
    """Loads a server whose batches take long with one request again and again.

    Args:
        server: whom to ask.
        form: how the request travels.
        ask: the request.
        clients: requests in flight.
        seconds: how long.

    Returns:
        What the clients saw, and answers a second from batch to batch (see `steady_rate`), or
        all in all where there were too few.
    """
    done = _all_clients(server, form, [ask], clients, seconds)
    load, rate = done.load, steady_rate(done.answered_at, clients)
    return load, load.answered / load.duration_s if math.isnan(rate) else rate


def steady_rate(times_s: Sequence[float], clients: int) -> float:
    """Answers a second between the ends of two batches, one at the beginning and one at the end.

    Over a fixed time, the last batch in flight would never count, which is a good part of a load
    of a few seconds; and the first ones are no full batches.

    Args:
        times_s: when each answer came, in order.
        clients: requests in flight; answers to a whole batch come close together.

    Returns:
        NaN if there were too few.
    """
    times = np.asarray(times_s)
    if len(times) < 6 * clients:
        return MISSING
    gaps = np.diff(times)  # gap i lies behind answer i
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
    """So many clients of one shooter."""

    shooter: Shooter
    clients: int
    seconds: float
    latencies_s: list[float] = field(default_factory=list)
    answered_at: list[float] = field(default_factory=list)
    """Those while all clients went on."""
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
        """One client's next request, until its time is up."""
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
