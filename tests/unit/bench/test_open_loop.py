"""The open loop: send times, independent of earlier responses, and the records."""

import asyncio
import itertools
import time

import numpy as np
import pytest

from bench.loads import open_loop
from bench.loads.open_loop import SENT_A_TURN, OpenLoop, Shots, poisson_arrivals
from bench.loads.shooter import Answered, Outcome


class ScriptedShooter:
    """Answers each request, in a later turn of the loop, as the script says; None: never."""

    def __init__(self, script: list[Outcome | None]) -> None:
        self._script = script
        self.sent: list[int] = []

    def send(self, number: int, answered: Answered) -> None:
        self.sent.append(number)
        outcome = self._script[(number - 1) % len(self._script)]
        if outcome is not None:
            asyncio.get_running_loop().call_soon(answered, outcome, b"7")

    async def send_and_leave(self, number: int, patience_s: float) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def test_arrivals_are_those_of_a_poisson_process() -> None:
    arrivals = poisson_arrivals(rate=1000, seconds=100, seed=1)
    assert len(arrivals) == pytest.approx(100_000, rel=0.02)
    gaps = np.diff(arrivals)
    assert (gaps >= 0).all()
    assert arrivals[0] >= 0
    assert arrivals[-1] < 100
    # Gaps of a Poisson process are exponential: their deviation is their mean.
    assert gaps.mean() == pytest.approx(0.001, rel=0.02)
    assert gaps.std() == pytest.approx(0.001, rel=0.02)
    # Counts in windows have their mean for a variance; equal steps would have none.
    counts, _ = np.histogram(arrivals, bins=1000)
    assert counts.var() == pytest.approx(counts.mean(), rel=0.15)


def test_a_seed_replays_its_arrivals() -> None:
    first, again, other = (poisson_arrivals(50, 10, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("spins", [True, False])
async def test_requests_leave_when_due_and_never_before(spins: bool) -> None:
    shooter, shots = ScriptedShooter([Outcome.ANSWERED]), Shots()
    arrivals = np.array([0.0, 0.004, 0.004, 0.02])
    began = time.monotonic()
    await OpenLoop(shooter, arrivals, shots, spins=spins).run()
    left = np.sort(np.array(shots.sent_at)) - began
    assert (left >= arrivals).all()
    assert shooter.sent == [1, 2, 3, 4]
    assert len(shots.lags_s) == 4
    assert min(shots.lags_s) >= 0


async def test_answers_are_read_between_requests_that_are_late() -> None:
    shots, answered_by_then = Shots(), []

    class Watching(ScriptedShooter):
        def send(self, number: int, answered: Answered) -> None:
            answered_by_then.append(len(shots.outcomes))
            super().send(number, answered)

    await OpenLoop(Watching([Outcome.ANSWERED]), np.zeros(3 * SENT_A_TURN), shots).run()
    assert answered_by_then[:SENT_A_TURN] == [0] * SENT_A_TURN
    assert answered_by_then[SENT_A_TURN] == SENT_A_TURN
    assert len(answered_by_then) == len(shots.outcomes) == 3 * SENT_A_TURN


async def test_unanswered_requests_hold_up_nobody_and_count_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_loop, "LAST_ANSWERS_S", 0.01)
    shooter, shots = ScriptedShooter([None, Outcome.ANSWERED]), Shots()
    await OpenLoop(shooter, np.linspace(0, 0.01, 10), shots).run()
    assert len(shooter.sent) == 10
    assert int(shots.where(Outcome.ANSWERED).sum()) == 5
    assert int(shots.where(Outcome.FAILED).sum()) == 5
    assert list(shots.messages.values()) == [5]


async def test_outcomes_tags_and_reasons_are_written() -> None:
    script = [Outcome.ANSWERED, Outcome.REFUSED, Outcome.EXPIRED, Outcome.FAILED]
    shots = Shots()
    await OpenLoop(ScriptedShooter(list(script)), np.zeros(8), shots, int).run()
    assert list(shots.outcomes) == [outcome.value for outcome in [*script, *script]]
    assert list(shots.tags) == [7, 0, 0, 0, 7, 0, 0, 0]
    # A refusal is what an overload should give; only faults are worth their words.
    assert shots.messages == {"EXPIRED: 7": 2, "FAILED: 7": 2}
    assert (shots.durations_ms(shots.where(Outcome.ANSWERED)) >= 0).all()


async def test_no_arrivals_end_at_once() -> None:
    shots = Shots()
    await OpenLoop(ScriptedShooter([None]), np.array([]), shots).run()
    assert len(shots.outcomes) == 0


async def test_an_endless_number_of_different_reasons_is_not_kept() -> None:
    numbers = itertools.count()

    class Complaining(ScriptedShooter):
        def send(self, number: int, answered: Answered) -> None:
            answered(Outcome.FAILED, b"reason %d" % next(numbers))

    shots = Shots()
    await OpenLoop(Complaining([]), np.zeros(100), shots).run()
    assert len(shots.messages) == open_loop.MAX_MESSAGES
    assert int(shots.where(Outcome.FAILED).sum()) == 100


def test_what_was_answered_by_a_moment_counts_no_refusals() -> None:
    shots = Shots()
    shots.sent_at.extend([1.0, 2.0, 2.0])
    shots.took_s.extend([0.5, 0.5, 9.0])
    shots.outcomes.extend([Outcome.ANSWERED, Outcome.REFUSED, Outcome.ANSWERED])
    assert [shots.answered_by(moment) for moment in (1.0, 3.0, 11.0)] == [0, 1, 2]
