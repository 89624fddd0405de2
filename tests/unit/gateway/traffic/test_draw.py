"""Draws of versions: shares, stickiness, growth; sequences keep their version."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.rollouts.traffic import Arm, Rollout, Split
from services.gateway.traffic.draw import (
    SequenceVersions,
    point_of,
    version_at,
    version_ends,
)
from services.queueing.records import SequenceStep

KEYS = st.text(max_size=40)
SHARES = st.floats(0.001, 0.999)


def rollout(share: float, **fields: str) -> Rollout:
    return Rollout(candidate=2, baseline=1, steps=(share,), **fields)  # type: ignore[arg-type]


def drawn_version(route: Rollout | Split, point: float) -> int:
    return version_at(version_ends(route), point)


@given(KEYS)
def test_point_is_the_same_everywhere(key: str) -> None:
    assert point_of("0123456789abcdef", key) == point_of("0123456789abcdef", key)
    assert 0 <= point_of("0123456789abcdef", key) < 1


def test_point_is_what_it_was_in_the_first_release() -> None:
    """Another hash would move callers at an update."""
    assert point_of("0123456789abcdef", "user-1") == 0.47823623727007425


def test_candidate_has_the_points_below_its_share() -> None:
    """Another order would move callers at an update."""
    assert [drawn_version(rollout(0.3), point) for point in (0, 0.299, 0.3, 0.999)] == [
        2,
        2,
        1,
        1,
    ]


@given(KEYS, SHARES, SHARES)
def test_growing_share_keeps_the_keys_of_the_candidate(key: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    point = point_of("0123456789abcdef", key)
    before = drawn_version(rollout(low), point)
    after = drawn_version(rollout(high), point)
    assert before <= after  # 1 is the baseline


@settings(max_examples=20, deadline=None)
@given(st.from_regex("[0-9a-f]{16}", fullmatch=True), SHARES)
def test_keys_are_shared_as_asked(route_id: str, share: float) -> None:
    """Six standard deviations: one example in a thousand million is beyond."""
    count = 4000
    drawn = Counter(
        drawn_version(rollout(share), point_of(route_id, f"user {n}")) for n in range(count)
    )
    assert abs(drawn[2] - share * count) <= 6 * (share * (1 - share) * count) ** 0.5 + 1


def test_each_rollout_draws_anew() -> None:
    keys = [f"user {n}" for n in range(200)]
    first, second = (
        [drawn_version(rollout(0.5), point_of(route_id, key)) for key in keys]
        for route_id in ("0" * 16, "1" * 16)
    )
    assert first != second


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=2, max_size=8), st.floats(0, 1, exclude_max=True))
def test_point_draws_the_arm_whose_share_it_is_in(weights: list[int], point: float) -> None:
    total = sum(weights)
    arms = tuple(Arm(version=n, share=w / total) for n, w in enumerate(weights, start=1))
    drawn = drawn_version(Split(name="s", arms=arms), point)
    before = sum(arm.share for arm in arms[: drawn - 1])
    assert before <= point + 1e-9
    assert point < before + arms[drawn - 1].share + 1e-9


BEGIN, MIDDLE = SequenceStep("s", is_start=True), SequenceStep("s")
END = SequenceStep("s", is_end=True)


def test_open_sequence_keeps_its_version_to_its_end() -> None:
    versions = SequenceVersions()
    assert versions.known("route", MIDDLE) is None
    versions.keep("route", BEGIN, 60, 1)
    assert versions.known("route", MIDDLE) == versions.known("route", END) == 1
    assert versions.known("route", BEGIN) is None
    versions.keep("route", END, 60, 1)
    assert versions.known("route", MIDDLE) is None


def test_each_route_draws_its_sequences_anew() -> None:
    versions = SequenceVersions()
    versions.keep("route", BEGIN, 60, 1)
    assert versions.known("other", MIDDLE) is None


def test_sequence_is_idle_since_its_last_answer() -> None:
    versions = SequenceVersions()
    versions.keep("route", BEGIN, 0, 1)
    assert versions.known("route", MIDDLE) is None
    versions.renew("route", BEGIN, 60)
    assert versions.known("route", MIDDLE) == 1
    versions.renew("route", SequenceStep("never seen"), 60)
    assert versions.known("route", SequenceStep("never seen")) is None
