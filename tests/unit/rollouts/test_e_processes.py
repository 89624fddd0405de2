"""E-processes: worth at most what they were before, on average, whatever came before."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollouts.evidence.e_processes import (
    CANDIDATE,
    LIVE,
    Array,
    Mixture,
    averaged,
    log_difference_above,
    log_mean_above,
    log_mean_below,
    log_share_above,
    log_share_below,
)

ZERO_ONE = np.array([0.0, 1.0])
VALUES = np.array([0.0, 0.2, 0.5, 1.0])
probabilities = st.floats(0.001, 0.999)
counts_of_values = st.lists(st.integers(0, 200), min_size=4, max_size=4).map(np.array)
events_of_shares = st.lists(st.integers(0, 60), min_size=4, max_size=4).map(
    lambda numbers: np.array(numbers, float).reshape(2, 2)
)
shares_of_traffic = st.lists(st.floats(0.01, 0.99), min_size=2, max_size=2).map(np.array)


def with_one_more(counts: Array, *place: int) -> Array:
    more = np.array(counts, float)
    more[place] += 1
    return more


@given(counts_of_values, probabilities, probabilities, st.booleans())
def test_a_mean_at_its_limit_earns_nothing(
    counts: Array, limit: float, part: float, above: bool
) -> None:
    """The next value is one of two, with the limit as its mean: the bet on it is fair."""
    weigh = log_mean_above if above else log_mean_below
    values = np.array([0.0, limit * part, limit + (1 - limit) * part, 1.0])
    low, high = values[1], values[2]
    chance = (limit - low) / (high - low)
    before = weigh(np.array(counts, float), values, limit)
    after = [weigh(with_one_more(counts, place), values, limit) for place in (1, 2)]
    mean = (1 - chance) * math.exp(after[0] - before) + chance * math.exp(after[1] - before)
    assert mean == pytest.approx(1, abs=1e-6)


@given(counts_of_values, probabilities, st.floats(0, 1))
def test_a_mean_within_its_limit_earns_at_most_nothing(
    counts: Array, limit: float, part: float
) -> None:
    before = log_mean_above(counts, VALUES, limit)
    chance = limit * part
    after = [log_mean_above(with_one_more(counts, place), VALUES, limit) for place in (0, 3)]
    mean = (1 - chance) * math.exp(after[0] - before) + chance * math.exp(after[1] - before)
    assert mean <= 1 + 1e-9


@given(events_of_shares, shares_of_traffic, st.floats(0.2, 5), st.floats(0, 1))
def test_events_at_or_within_the_tolerated_ratio_earn_at_most_nothing(
    events: Array, shares: Array, ratio: float, part: float
) -> None:
    for weigh, allowed in ((log_share_above, ratio * part), (log_share_below, ratio * (2 - part))):
        before = weigh(events, shares, ratio)
        for stratum, share in enumerate(shares):
            chance = share * allowed / (share * allowed + 1 - share)
            own = weigh(with_one_more(events, stratum, CANDIDATE), shares, ratio)
            other = weigh(with_one_more(events, stratum, LIVE), shares, ratio)
            mean = chance * math.exp(own - before) + (1 - chance) * math.exp(other - before)
            assert mean <= 1 + 1e-9


@given(
    st.lists(st.integers(0, 40), min_size=16, max_size=16),
    shares_of_traffic,
    st.floats(-0.9, 0.9),
    st.floats(0, 1),
)
def test_means_that_differ_by_the_tolerated_difference_earn_nothing(
    numbers: list[int], shares: Array, difference: float, part: float
) -> None:
    """One version has values of 0 and 1 with some mean, the other with a mean that far away."""
    counts = np.array(numbers, float).reshape(2, 2, 4)
    lowest, highest = max(0.0, difference), min(1.0, 1.0 + difference)
    candidate = lowest + part * (highest - lowest)
    live = candidate - difference
    before = log_difference_above(counts, VALUES, shares, difference)
    for stratum, share in enumerate(shares):
        mean = 0.0
        for version, drawn, chance in ((CANDIDATE, share, candidate), (LIVE, 1 - share, live)):
            for place, likely in ((0, 1 - chance), (3, chance)):
                more = with_one_more(counts, stratum, version, place)
                after = log_difference_above(more, VALUES, shares, difference)
                mean += drawn * likely * math.exp(after - before)
        assert mean == pytest.approx(1, abs=1e-6)


@given(st.integers(0, 200), st.integers(0, 200), st.floats(0.01, 0.5))
def test_zeros_and_ones_are_weighed_by_likelihoods(ones: int, zeros: int, limit: float) -> None:
    """With a single alternative, whose odds are 3 times as high, by the formula itself."""
    odds = 3 * limit / (1 - limit)
    alternative = odds / (1 + odds)
    expected = ones * math.log(alternative / limit)
    expected += zeros * math.log((1 - alternative) / (1 - limit))
    counts = np.array([zeros, ones], float)
    found = log_mean_above(counts, ZERO_ONE, limit, Mixture((3.0,), (1.0,)))
    assert float(found) == pytest.approx(expected, abs=1e-8)
    events = np.array([[ones, zeros]], float)
    split = log_share_above(events, np.array([limit]), 1.0, Mixture((3.0,), (1.0,)))
    assert float(split) == pytest.approx(expected, abs=1e-8)


def test_no_counts_weigh_nothing() -> None:
    assert log_mean_above(np.zeros(2), ZERO_ONE, 0.1) == pytest.approx(0)
    assert log_share_above(np.zeros((1, 2)), np.array([0.1]), 1.5) == pytest.approx(0)
    nothing = log_difference_above(np.zeros((1, 2, 2)), ZERO_ONE, np.array([0.1]), 0.05)
    assert nothing == pytest.approx(0)


def test_many_rollouts_are_weighed_as_each_alone() -> None:
    random = np.random.default_rng(3)
    pairs = random.integers(0, 50, (5, 2)).astype(float)
    events = random.integers(0, 50, (5, 3, 2)).astype(float)
    shares = np.array([0.01, 0.1, 0.5])
    outputs = random.integers(0, 50, (5, 3, 2, 2)).astype(float)
    together = (
        log_mean_above(pairs, ZERO_ONE, 0.2),
        log_share_above(events, shares, 1.5),
        log_difference_above(outputs, ZERO_ONE, shares, 0.05),
    )
    for place in range(5):
        assert together[0][place] == pytest.approx(log_mean_above(pairs[place], ZERO_ONE, 0.2))
        assert together[1][place] == pytest.approx(log_share_above(events[place], shares, 1.5))
        alone = log_difference_above(outputs[place], ZERO_ONE, shares, 0.05)
        assert together[2][place] == pytest.approx(alone)


def test_e_values_beyond_floats_are_averaged() -> None:
    assert averaged(np.array([2000.0, 0.0])) == pytest.approx(2000 - math.log(2))


@pytest.mark.parametrize("disagreement", [0.002, 0.01])
def test_looking_after_every_pair_keeps_the_risk(disagreement: float) -> None:
    """1,000 rollouts of 3,000 pairs within their limit of 1 %; a risk of 5 %."""
    random = np.random.default_rng(11)
    differ = np.zeros(1000)
    alarmed = np.zeros(1000, bool)
    for pairs in range(1, 3001):
        differ += random.random(1000) < disagreement
        counts = np.stack([pairs - differ, differ], axis=-1)
        alarmed |= log_mean_above(counts, ZERO_ONE, 0.01) >= math.log(1 / 0.05)
    assert alarmed.mean() <= 0.05
    assert disagreement < 0.01 or alarmed.any()
