"""Open-loop load: requests are sent when due, independent of earlier responses.

In: send times, drawn before the run. Out: for each request its send time, its lag behind schedule,
its latency and its outcome. A closed loop slows down with the server and hides an overload; an
open loop does not.
"""

import asyncio
import functools
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.loads.shooter import Answered, Outcome, Shooter
from bench.servers.pinning import cores_apart

SPIN_BELOW_S = 0.002
"""Timers have millisecond resolution; for shorter waits the loop spins until the time has come."""
TICK_S = 0.001
"""Shortest sleep of a loop that does not spin; shorter timers would make it spin anyway."""
LAST_ANSWERS_S = 5.0
"""Time allowed for the last responses before their requests count as failed."""
SENT_A_TURN = 64
"""Number of late requests sent before responses are read, as a client of many would do."""
MAX_MESSAGES = 20

Floats = npt.NDArray[np.float64]


def poisson_arrivals(rate: float, seconds: float, seed: int) -> Floats:
    """Draws times of independent arrivals, in seconds from 0.

    Args:
        rate: mean arrivals a second.
        seconds: upper bound of the times.
        seed: random seed; equal seeds give equal times.
    """
    random = np.random.default_rng(seed)
    # Given their number, the arrival times of a Poisson process are independent and uniform.
    return np.sort(random.uniform(0, seconds, random.poisson(rate * seconds)))


@dataclass(slots=True)
class Shots:
    """Outcomes of the requests, in the order they ended."""

    sent_at: "array[float]" = field(default_factory=lambda: array("d"))
    """`time.monotonic()` seconds."""
    took_s: "array[float]" = field(default_factory=lambda: array("d"))
    outcomes: "array[int]" = field(default_factory=lambda: array("b"))
    tags: "array[int]" = field(default_factory=lambda: array("q"))
    """Number that `read_tag` returned for each response; 0 without it."""
    lags_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Lag of each request behind its schedule, in send order."""
    messages: "Counter[str]" = field(default_factory=Counter)
    """Messages of failures."""

    def where(self, outcome: Outcome) -> npt.NDArray[np.bool_]:
        """Returns a mask of the requests with this outcome."""
        chosen: npt.NDArray[np.bool_] = np.asarray(self.outcomes) == outcome
        return chosen

    def answered_by(self, moment: float) -> int:
        """Returns the number of responses received by a `time.monotonic()` second."""
        ended_at = np.asarray(self.sent_at) + np.asarray(self.took_s)
        return int((self.where(Outcome.ANSWERED) & (ended_at <= moment)).sum())

    def durations_ms(self, chosen: npt.NDArray[np.bool_]) -> Floats:
        """Returns the latencies of the chosen requests."""
        return np.asarray(self.took_s)[chosen] * 1000


class OpenLoop:
    """Sends one request at each of the given times.

    Args:
        shooter: sender of the requests.
        arrivals: seconds from the start, ascending.
        shots: receives the outcomes.
        read_tag: function that reads a number out of a response body.
        spins: True to send with microsecond precision; needs a free client core.
    """

    def __init__(
        self,
        shooter: Shooter,
        arrivals: Floats,
        shots: Shots,
        read_tag: Callable[[bytes], int] | None = None,
        *,
        spins: bool = True,
    ) -> None:
        self._shooter = shooter
        self._arrivals = arrivals.tolist()
        self._shots = shots
        self._read_tag = read_tag
        self._spins = spins and cores_apart()
        self._loop = asyncio.get_running_loop()
        self._sent = self._ended = 0
        self._over = False
        self._all_sent = self._loop.create_future()
        self._all_ended = self._loop.create_future()

    async def run(self) -> None:
        """Returns after all responses, or `LAST_ANSWERS_S` after the last request was sent."""
        self._started = time.monotonic()
        self._turn()
        try:
            await self._all_sent
            async with asyncio.timeout(LAST_ANSWERS_S):
                await self._all_ended
        except TimeoutError:
            left = self._sent - self._ended
            self._shots.messages[f"no answer within {LAST_ANSWERS_S:g} s of the end"] += left
            for _ in range(left):
                self._write(time.monotonic() - LAST_ANSWERS_S, LAST_ANSWERS_S, Outcome.FAILED, 0)
        finally:
            self._over = True

    def _turn(self) -> None:
        """Sends the requests that are due, and schedules the next turn."""
        if self._over:
            return
        arrivals, count = self._arrivals, len(self._arrivals)
        pause = self._sent + SENT_A_TURN
        while self._sent < count:
            if self._sent == pause:
                self._loop.call_soon(self._turn)
                return
            now = time.monotonic()
            wait = self._started + arrivals[self._sent] - now
            if wait > 0:
                if wait > SPIN_BELOW_S:
                    self._loop.call_later(wait - SPIN_BELOW_S / 2, self._turn)
                elif self._spins:
                    self._loop.call_soon(self._turn)
                else:
                    self._loop.call_later(max(wait, TICK_S), self._turn)
                return
            self._shots.lags_s.append(-wait)
            answered: Answered = functools.partial(self._answered, now)
            self._sent += 1
            self._shooter.send(self._sent, answered)
        if not self._all_sent.done():
            self._all_sent.set_result(None)
            self._look_whether_all_ended()

    def _answered(self, sent_at: float, outcome: Outcome, body: bytes) -> None:
        if self._over:
            return
        took_s = time.monotonic() - sent_at
        tag = 0
        if outcome is Outcome.ANSWERED:
            if self._read_tag is not None:
                tag = self._read_tag(body)
        elif outcome is not Outcome.REFUSED:
            self._note(f"{outcome.name}: {body[:200].decode(errors='replace')}")
        self._ended += 1
        self._write(sent_at, took_s, outcome, tag)
        self._look_whether_all_ended()

    def _note(self, message: str) -> None:
        messages = self._shots.messages
        if message in messages or len(messages) < MAX_MESSAGES:
            messages[message] += 1

    def _write(self, sent_at: float, took_s: float, outcome: Outcome, tag: int) -> None:
        shots = self._shots
        shots.sent_at.append(sent_at)
        shots.took_s.append(took_s)
        shots.outcomes.append(outcome)
        shots.tags.append(tag)

    def _look_whether_all_ended(self) -> None:
        if self._ended == len(self._arrivals) and not self._all_ended.done():
            self._all_ended.set_result(None)
