"""Latency quantiles: compared in pairs, at the least favourable value of an unknown quantile."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollouts.evidence.e_processes import CANDIDATE, LIVE, Array
from services.rollouts.evidence.quantiles import (
    BUCKETS_AN_OCTAVE,
    HIGHEST_S,
    LOWEST_S,
    bucket_of,
    buckets_of_ratio,
    comparison,
    log_quantile_ratios,
    quantile_interval,
    seconds_of,
)

BUCKETS = 300


def latencies(random: np.random.Generator, pairs: int, slower: int) -> Array:
    """Buckets of pairs whose latencies share much of what makes them slow."""
    shared = random.normal(0, 15, pairs)
    both = shared[:, None] + random.normal(150, 15, (pairs, 2)) + np.array([slower, 0])
    counts = np.zeros((3, 2, BUCKETS))
    for own, live in np.rint(both).astype(int).tolist():
        kind = comparison(own, live)
        counts[kind, CANDIDATE, own] += 1
        counts[kind, LIVE, live] += 1
    return counts


@given(st.floats(LOWEST_S, HIGHEST_S))
def test_a_bucket_is_within_2_percent(seconds: float) -> None:
    assert seconds_of(bucket_of(seconds)) == pytest.approx(seconds, rel=0.011)


def test_latencies_beyond_the_buckets_are_in_the_last_ones() -> None:
    assert bucket_of(0.0) == bucket_of(-1.0) == bucket_of(LOWEST_S)
    assert bucket_of(math.nan) == bucket_of(math.inf) == bucket_of(HIGHEST_S)


@given(st.floats(1.001, 1000))
def test_a_ratio_is_rounded_up(ratio: float) -> None:
    assert ratio * 0.999 <= seconds_of(buckets_of_ratio(ratio)) <= ratio * 1.022
    assert buckets_of_ratio(2.0) == BUCKETS_AN_OCTAVE


def test_no_pairs_weigh_nothing() -> None:
    for found in log_quantile_ratios(np.zeros((3, 2, BUCKETS)), 0.99):
        assert found <= 1e-9


@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_a_slower_and_a_faster_candidate_are_told_apart(quantile: float) -> None:
    random = np.random.default_rng(1)
    above, below = log_quantile_ratios(latencies(random, 6000, 15), quantile)
    assert above > 10 > 0 > below
    above, below = log_quantile_ratios(latencies(random, 6000, -15), quantile)
    assert below > 5 > 0 > above


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_equal_latencies_alarm_no_more_often_than_the_risk(quantile: float) -> None:
    random, rollouts = np.random.default_rng(2), 200
    total, highest = np.zeros((rollouts, 3, 2, BUCKETS)), np.full((2, rollouts), -math.inf)
    for _ in range(15):
        total += np.stack([latencies(random, 20, 0) for _ in range(rollouts)])
        highest = np.maximum(highest, log_quantile_ratios(total[..., 60:240], quantile))
    alarms = (highest >= math.log(1 / 0.1)).sum(axis=1)
    assert (alarms <= 0.1 * rollouts).all()


def test_intervals_hold_the_quantile_at_every_look() -> None:
    random = np.random.default_rng(4)
    missed = found = 0
    for _ in range(100):
        counts, wrong = np.zeros(BUCKETS), False
        for _ in range(20):
            drawn = np.rint(random.normal(150, 15, 50)).astype(int)
            counts += np.bincount(drawn, minlength=BUCKETS)
            bounds = quantile_interval(counts, 0.5, 0.1)
            wrong |= bounds is not None and not bounds[0] <= 150 <= bounds[1]
        missed += wrong
        assert bounds is not None
        found += bounds[1] - bounds[0] <= 6
    assert missed <= 10
    assert found > 75


def test_too_few_latencies_have_no_interval() -> None:
    assert quantile_interval(np.ones(20), 0.99, 0.05) is None
