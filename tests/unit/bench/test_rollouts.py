"""Simulated rollouts: each line of `make simulate-rollouts`, with fewer rollouts."""

import io

import numpy as np
import pytest
from rich.console import Console

from bench.rollouts.__main__ import quantile
from bench.rollouts.scenarios import (
    AT_ITS_LIMITS,
    FIVE_PERCENT,
    GOOD,
    GUARDS,
    PROMOTED,
    SLOW,
    TWENTY_TIMES,
    Scenario,
)
from bench.rollouts.shown_progress import scenario_progress
from bench.rollouts.simulation import AT_ONCE, simulate
from model_store.rollouts.guards import Guards

FEW = 100


def test_the_share_that_is_done_grows_to_1() -> None:
    shares: list[float] = []
    simulate(FIVE_PERCENT, GUARDS, AT_ONCE + 1, 3, shares.append)
    assert len(shares) > 10
    assert shares == sorted(shares)
    assert (shares[0] < 0.5, shares[-1]) == (True, 1)


def test_without_a_terminal_a_line_every_few_seconds_tells_the_time_left() -> None:
    screen, clock = io.StringIO(), iter([0.0, 5.0, 20.0, 20.0, 40.0])
    console = Console(file=screen, width=200, force_terminal=False)
    with scenario_progress(console, "2/10", "good candidate", lambda: next(clock)) as show:
        show(0.1)
        show(0.5)
    assert screen.getvalue().splitlines() == [
        "2/10 good candidate: begins",
        "2/10 good candidate: 50% done, about 20 s left",
        "2/10 good candidate: done in 40 s",
    ]


@pytest.mark.parametrize("scenario", [GOOD, AT_ITS_LIMITS], ids=lambda one: one.name)
def test_a_candidate_within_its_limits_stays(scenario: Scenario) -> None:
    outcomes = simulate(scenario, GUARDS, FEW, seed=1)
    assert outcomes.rolled_back_share <= 0.01
    assert scenario is GOOD or outcomes.promoted_share <= 0.01


def test_a_false_rollback_is_no_more_likely_than_the_risk() -> None:
    """With a risk of 20 %, so that a few hundred rollouts show it."""
    outcomes = simulate(AT_ITS_LIMITS, Guards(risk=0.2), 200, seed=2)
    assert 0 < outcomes.rolled_back_share <= 0.2


def test_disagreement_is_caught_within_300_pairs() -> None:
    outcomes = simulate(FIVE_PERCENT, GUARDS, 2000, seed=3)
    assert outcomes.rolled_back_share == 1
    assert quantile(outcomes.rolled_back, 0.9) <= 310  # 300 with 10,000 rollouts


def test_errors_are_caught_within_2500_requests() -> None:
    outcomes = simulate(TWENTY_TIMES, GUARDS, 1000, seed=4)
    assert outcomes.rolled_back_share == 1
    assert quantile(outcomes.rolled_back, 0.5) <= 2600  # 2,500 with 10,000 rollouts


def test_slowness_is_caught() -> None:
    outcomes = simulate(SLOW, GUARDS, FEW, seed=5)
    assert outcomes.rolled_back_share == 1
    assert quantile(outcomes.rolled_back, 0.5) <= 700


def test_a_good_candidate_is_promoted() -> None:
    outcomes = simulate(PROMOTED, GUARDS, FEW, seed=6)
    assert outcomes.promoted_share >= 0.9
    assert outcomes.rolled_back_share == 0


def test_a_seed_repeats_a_simulation() -> None:
    first, second = (simulate(FIVE_PERCENT, GUARDS, 50, seed=9) for _ in range(2))
    assert np.array_equal(first.rolled_back, second.rolled_back)
