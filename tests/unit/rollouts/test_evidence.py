"""Counts: merged exactly and in any order, restored as they were, refused if malformed."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.rollouts.guards import Guards
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import (
    MAX_COUNT,
    MAX_NAMES,
    MAX_PLACE,
    MAX_SHARES,
    SCORE_STEPS,
    VERSIONS,
    Evidence,
    merged,
    score_step,
)
from services.rollouts.evidence.judge import judge


@st.composite
def some_evidence(draw: st.DrawFn) -> Evidence:
    evidence = Evidence()
    for _ in range(draw(st.integers(0, 10))):
        evidence.count_request(
            draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0])),
            draw(st.sampled_from(VERSIONS)),
            failed=draw(st.booleans()),
            nan=draw(st.booleans()),
            output=draw(st.none() | st.integers(0, 9)),
        )
        evidence.count_pair(draw(st.floats(0, 1)))
        evidence.count_latencies(draw(st.floats(0, 1e5)), draw(st.floats(0, 1e5)), 1.2)
    names = st.sampled_from(["errors", "latency"])
    evidence.peaks = draw(st.dictionaries(names, st.floats(-50, 50)))
    return evidence


@given(
    st.lists(some_evidence(), max_size=4).flatmap(
        lambda p: st.tuples(st.just(p), st.permutations(p))
    )
)
def test_merging_is_exact_and_knows_no_order(
    parts: tuple[list[Evidence], list[Evidence]],
) -> None:
    given_order, other_order = parts
    total = merged(given_order)
    assert total == merged(other_order)
    assert total == merged([merged(given_order[:2]), merged(given_order[2:])])
    assert sum(total.counts.values()) == sum(sum(p.counts.values()) for p in given_order)


def test_two_halves_judge_as_the_whole() -> None:
    halves, whole = (Evidence(), Evidence()), Evidence()
    for number in range(4000):
        for evidence in (halves[number % 2], whole):
            version = VERSIONS[number % 7 != 0]
            evidence.count_request(0.1, version, failed=number % 49 == 0, output=number % 2)
            evidence.count_pair(float(number % 90 == 0))
            evidence.count_latencies(0.01 + number % 13 / 1000, 0.01 + number % 11 / 1000, 1.2)
    assert judge(merged(halves), Guards()) == judge(whole, Guards())


@given(some_evidence())
def test_a_restart_restores_everything(evidence: Evidence) -> None:
    restored = Evidence.from_plain(json.loads(json.dumps(evidence.as_plain())))
    assert restored == evidence


def test_traffic_that_is_not_split_is_not_counted() -> None:
    evidence = Evidence()
    for share in (0.0, 1.0, 1e-9):
        evidence.count_request(share, "live")
    assert evidence.counts == {}


def test_a_failed_request_has_no_output() -> None:
    evidence = Evidence()
    evidence.count_request(0.1, "candidate", failed=True, nan=True, output=3)
    assert evidence.counts == {
        "share/100000/candidate/requests": 1,
        "share/100000/candidate/errors": 1,
    }


@pytest.mark.parametrize(
    ("score", "step"),
    [
        (0.0, 0), (1.0, SCORE_STEPS), (0.9999999, SCORE_STEPS - 1), (1e-9, 0), (0.25, 250),
        (math.nan, SCORE_STEPS), (-1.0, SCORE_STEPS), (7.0, SCORE_STEPS),
    ],
)  # fmt: skip
def test_a_score_is_counted_in_steps(score: float, step: int) -> None:
    assert score_step(score) == step


WELL_FORMED = {"counts": {"pairs/0": 3, "share/100000/live/output/7": 1}, "peaks": {"errors": 1.5}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ([], "counts and peaks"),
        ({"counts": {}}, "counts and peaks"),
        ({"counts": [], "peaks": {}}, "objects of numbers"),
        ({"counts": {"pairs/0": -1}, "peaks": {}}, "-1"),
        ({"counts": {"pairs/0": True}, "peaks": {}}, "True"),
        ({"counts": {"pairs/0": 1.5}, "peaks": {}}, "1.5"),
        ({"counts": {"pairs/0": MAX_COUNT + 1}, "peaks": {}}, "a whole number"),
        ({"counts": {f"pairs/{MAX_PLACE + 1}": 1}, "peaks": {}}, "places end at"),
        ({"counts": {"latency/above/live/-1001": 1}, "peaks": {}}, "places end at"),
        ({"counts": {"pairs/01": 1}, "peaks": {}}, "no count has the name"),
        ({"counts": {"share/0/live/requests": 1}, "peaks": {}}, "no count has the name"),
        ({"counts": {"share/100000/other/requests": 1}, "peaks": {}}, "no count has the name"),
        ({"counts": {7: 1}, "peaks": {}}, "no count has the name 7"),
        ({"counts": {}, "peaks": {"errors": math.inf}}, "the peak of errors"),
        ({"counts": {}, "peaks": {"errors": "1"}}, "the peak of errors"),
        ({"counts": {}, "peaks": {str(n): 1.0 for n in range(17)}}, "17 peaks"),
        ({"counts": {f"x{n}": 1 for n in range(MAX_NAMES + 1)}, "peaks": {}}, "are read"),
        (
            {"counts": {f"share/{n + 1}/live/nan": 1 for n in range(MAX_SHARES + 1)}, "peaks": {}},
            "shares of traffic",
        ),
    ],
)
def test_malformed_counts_are_refused(change: Any, said: str) -> None:
    with pytest.raises(InvalidEvidenceError, match=said):
        Evidence.from_plain(change)


def test_well_formed_counts_are_read() -> None:
    assert Evidence.from_plain(WELL_FORMED).as_plain() == WELL_FORMED
