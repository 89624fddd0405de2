"""Intervals of effects: they hold the truth at every look, and narrow with the counts."""

from collections.abc import Callable

import numpy as np
import pytest

from services.rollouts.evidence.e_processes import Array
from services.rollouts.evidence.effects import (
    difference_interval,
    mean_interval,
    ratio_interval,
)

RISK = 0.2
"""High, so that some of the intervals may miss the truth."""
ROLLOUTS, LOOKS = 30, 5
SHARES = np.array([0.1, 0.5])
ZERO_ONE = np.array([0.0, 1.0])
Bounds = tuple[float, float | None]


def missed(draw: Callable[[], Array], interval: Callable[[Array], Bounds], truth: float) -> float:
    """Returns the share of rollouts in which an interval missed the truth at any look."""
    misses = 0
    for _ in range(ROLLOUTS):
        total, missed = draw() * 0, False
        for _ in range(LOOKS):
            total = total + draw()
            low, high = interval(total)
            missed |= low > truth or (high is not None and high < truth)
        misses += missed
    return misses / ROLLOUTS


def test_intervals_of_a_mean_hold_it_at_every_look() -> None:
    random = np.random.default_rng(1)

    def draw() -> Array:
        ones = random.binomial(200, 0.03)
        return np.array([200.0 - ones, ones])

    assert missed(draw, lambda c: mean_interval(c, ZERO_ONE, RISK), 0.03) <= RISK


def test_intervals_of_a_ratio_hold_it_at_every_look() -> None:
    random = np.random.default_rng(2)

    def draw() -> Array:
        candidate = SHARES * 3 / (SHARES * 3 + 1 - SHARES)
        own = random.binomial(30, candidate).astype(float)
        return np.stack([own, 30 - own], axis=-1)

    assert missed(draw, lambda e: ratio_interval(e, SHARES, RISK), 3.0) <= RISK


def test_intervals_of_a_difference_hold_it_at_every_look() -> None:
    random = np.random.default_rng(3)

    def draw() -> Array:
        candidate = random.binomial(400, SHARES)
        requests = np.stack([candidate, 400 - candidate], axis=-1)
        ones = random.binomial(requests, [0.4, 0.3]).astype(float)
        return np.stack([requests - ones, ones], axis=-1)

    def interval(counts: Array) -> Bounds:
        return difference_interval(counts, ZERO_ONE, SHARES, RISK)

    assert missed(draw, interval, 0.1) <= RISK


def test_intervals_narrow() -> None:
    few, many = (mean_interval(np.array([90.0, 10]) * n, ZERO_ONE, 0.05) for n in (1, 100))
    assert few[0] < many[0] < 0.1 < many[1] < few[1]
    assert many[1] - many[0] < 0.03
    events = np.array([[300.0, 100.0]])
    low, high = ratio_interval(events, np.array([0.5]), 0.05)
    assert high is not None
    assert 2 < low < 3 < high < 4.6


def test_no_counts_have_no_bounds() -> None:
    assert mean_interval(np.zeros(2), ZERO_ONE, 0.05) == pytest.approx((0, 1))
    assert ratio_interval(np.zeros((1, 2)), np.array([0.5]), 0.05) == (0.0, None)
    nothing = difference_interval(np.zeros((1, 2, 2)), ZERO_ONE, np.array([0.5]), 0.05)
    assert nothing == pytest.approx((-1, 1))


def test_events_of_one_version_bound_the_ratio_on_one_side() -> None:
    low, high = ratio_interval(np.array([[20.0, 0.0]]), np.array([0.5]), 0.05)
    assert low > 1
    assert high is None
    low, high = ratio_interval(np.array([[0.0, 20.0]]), np.array([0.5]), 0.05)
    assert low == 0
    assert high is not None
    assert high < 1
