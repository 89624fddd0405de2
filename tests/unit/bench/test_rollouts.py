"""Simulated rollouts: each line of `make simulate-rollouts`, with fewer rollouts."""

import numpy as np
import pytest

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
from bench.rollouts.simulation import simulate
from model_store.rollouts.guards import Guards

FEW = 100


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
