"""Artifacts that reach the requested accuracy, and the fastest of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.accuracies import ACCURACIES
from services.queueing.artifact_rules import BALANCED_LOSS, NOISE, fastest, gives

SPEEDS = st.lists(st.tuples(st.uuids().map(str), st.floats(1e-6, 1e6)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("precision", "loss", "given_by_it"),
    [
        ("fp32", 0.0, {"exact", "balanced", "fast"}),
        ("fp32", 0.2, {"exact", "balanced", "fast"}),
        ("bf16", 0.0, {"balanced", "fast"}),
        ("int8", BALANCED_LOSS, {"balanced", "fast"}),
        ("int8", BALANCED_LOSS + 1e-9, {"fast"}),
    ],
)
def test_what_an_artifact_gives(precision: str, loss: float, given_by_it: set[str]) -> None:
    assert {a for a in ACCURACIES if gives(a, precision, loss)} == given_by_it


@given(precision=st.sampled_from(["fp32", "bf16", "fp16", "int8"]), loss=st.floats(0, 1))
def test_what_gives_more_gives_less_too(precision: str, loss: float) -> None:
    given_by_it = [gives(accuracy, precision, loss) for accuracy in ACCURACIES]
    assert given_by_it == sorted(given_by_it)
    assert given_by_it[-1]


def test_nothing_is_the_fastest_of_nothing() -> None:
    assert fastest([]) == ""


def test_one_that_was_never_measured_loses_and_is_better_than_none() -> None:
    assert fastest([("a", float("inf"))]) == "a"
    assert fastest([("a", float("inf")), ("b", 9.0)]) == "b"


@given(SPEEDS)
def test_nothing_beats_the_fastest_by_more_than_noise(speeds: list[tuple[str, float]]) -> None:
    best_ms = dict(speeds)[fastest(speeds)]
    assert all(ms >= best_ms * (1 - NOISE) for _, ms in speeds)


@given(SPEEDS)
def test_the_first_keeps_its_place_within_the_noise(speeds: list[tuple[str, float]]) -> None:
    (first, own_ms), others = speeds[0], speeds[1:]
    within = [(name, max(ms, own_ms * (1 - NOISE))) for name, ms in others]
    assert fastest([(first, own_ms), *within]) == first
