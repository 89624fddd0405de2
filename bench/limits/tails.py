"""The slowest answers at half of capacity, when requests arrive independently of responses.

Each request is sent when it is due, however many are unanswered, and its time counts from there: a
closed loop would send less while the server is slow, and leave out what it would have seen.

The client and the system stop for milliseconds, too, on two cores that both use: requests that were
in flight while the client sent others over `PAUSE_S` late say nothing of the server, and are left
out. Their share is told.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt
import uvloop

from bench.figures.verdicts import percentile, ratio
from bench.loads.capacity import Stream, find_capacity
from bench.loads.closed_loop import closed_loop, warm_up
from bench.loads.open_loop import OpenLoop, Shots, poisson_arrivals
from bench.loads.shooter import Outcome
from bench.loads.shooters import open_shooter
from bench.measured.golden_model import (
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
    served_artifact,
)
from bench.peers.peer import Ask, Form
from bench.servers.metrics_page import read_metrics
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore

CLIENTS = 32
CLOSED_S = 3
SEARCHED = (0.5, 0.7, 0.85, 1.0)
"""Loads tried for the capacity, as parts of the rate of `CLIENTS` clients."""
PART = 0.5
SEED = 17
PERCENT = 99.9
PAUSE_S = 0.002
"""Lag of the client behind its schedule that counts as a pause; its timer has 1 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFigures:
    """One model through one protocol."""

    model: str
    form: str
    capacity_per_second: float
    """Requests that arrive at random times and are answered in time."""
    batch_rows: float
    """Mean rows of a batch under `CLIENTS` clients that send without a pause."""
    batch_ms: float
    """Time of such a batch, with all that the server does for it."""
    p999_ms: float = 0.0
    """Median of the rounds."""
    p999_with_pauses_ms: float = 0.0
    """The same of all requests, those beside pauses of the client included."""
    beside_pauses_share: float = 0.0
    """Share of the requests that were in flight during a pause of the client."""
    yardstick_p999_ms: float = 0.0
    """`p999_ms` of the yardstick under the same load; 0 if it was not measured."""
    failures: int = 0

    @property
    def batches(self) -> float:
        """Returns `p999_ms`, in times of a batch."""
        return ratio(self.p999_ms, self.batch_ms)


class Tail:
    """The load of one model through one protocol on a running server.

    Args:
        store: model store of the model.
        server: server of its fastest artifact.
        name: name of the model.
        form: protocol and body.
        yardstick: address of one that gets the same load in turn, if any.
    """

    def __init__(
        self,
        store: ModelStore,
        server: ServerProcess,
        name: str,
        form: Form,
        yardstick: str = "",
    ) -> None:
        manifest = newest_manifest(store, name)
        model = golden_model(store, manifest)
        length = check_answers(server, model, served_artifact(manifest, ""))[form]
        self._server, self._form, self._yardstick = server, form, yardstick
        self._ask: Ask = ask_for(model, form, model.rows[:1])
        warm_up(server, form, self._ask, CLIENTS, length)
        before = read_metrics(server.metrics)
        load = closed_loop(server, form, self._ask, CLIENTS, CLOSED_S, length)
        rows = read_metrics(server.metrics).since(before).mean_batch_rows(name)
        per_second = load.answered / load.duration_s
        print(f"{name}, {form}: {per_second:,.0f} requests/s of {CLIENTS} clients", flush=True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            stream = Stream(form, self._ask, per_second)
            part = runner.run(find_capacity(server, [stream], SEARCHED))
        self._figures = TailFigures(
            model=name,
            form=form,
            capacity_per_second=part * per_second,
            batch_rows=rows,
            batch_ms=rows / per_second * 1000,
        )
        self._rounds: list[Shots] = []
        self._yardstick_rounds: list[Shots] = []

    def offer(self, seconds: float) -> None:
        """Offers half of the capacity for a while."""

        async def run(http: str) -> Shots:
            shots = Shots()
            shooter = open_shooter(self._form, http, self._server.grpc, [self._ask])
            rate = PART * self._figures.capacity_per_second
            arrivals = poisson_arrivals(rate, seconds, SEED + len(self._rounds))
            try:
                await OpenLoop(shooter, arrivals, shots).run()
            finally:
                await shooter.close()
            return shots

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if self._yardstick:
                self._yardstick_rounds.append(runner.run(run(self._yardstick)))
            self._rounds.append(runner.run(run(self._server.http)))
        if messages := self._rounds[-1].messages:
            print(f"{self._figures.model}, {self._form}: failures: {dict(messages)}", flush=True)

    def figures(self) -> TailFigures:
        """Returns the medians of the rounds; failures add up."""
        answered = [shots.where(Outcome.ANSWERED) for shots in self._rounds]
        return replace(
            self._figures,
            p999_ms=_slowest_ms(self._rounds),
            p999_with_pauses_ms=median(
                percentile(shots.durations_ms(which), PERCENT)
                for shots, which in zip(self._rounds, answered, strict=True)
            ),
            beside_pauses_share=median(float(beside_pauses(s).mean()) for s in self._rounds),
            yardstick_p999_ms=_slowest_ms(self._yardstick_rounds),
            failures=sum(int((~which).sum()) for which in answered),
        )


def _slowest_ms(rounds: Sequence[Shots]) -> float:
    """Returns `PERCENT` of the answers of a round beside no pause, the median of the rounds."""
    found = [
        percentile(
            shots.durations_ms(shots.where(Outcome.ANSWERED) & ~beside_pauses(shots)), PERCENT
        )
        for shots in rounds
    ]
    return median(found) if found else 0.0


def beside_pauses(shots: Shots) -> npt.NDArray[np.bool_]:
    """Returns a mask of the requests that were in flight during a pause of the client.

    A request that was sent late ends a pause, which began when the request was due.
    """
    sent_at, lags_s = np.asarray(shots.sent_at), np.asarray(shots.lags_s)
    ended_at = sent_at + np.asarray(shots.took_s)
    late = lags_s > PAUSE_S
    ends = np.sort(sent_at)[: len(lags_s)][late]
    begins = ends - lags_s[late]
    # A pause overlaps a request if it begins before the request ends, and ends after it was sent.
    beside: npt.NDArray[np.bool_] = np.searchsorted(begins, ended_at) > np.searchsorted(
        ends, sent_at
    )
    return beside
