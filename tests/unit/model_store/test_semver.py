"""Semantic versions and their ranges, by the examples of semver.org and of node-semver."""

import pytest

from model_store.semver.semver import (
    BUMPS,
    Bump,
    SemanticVersion,
    bump_at_least,
    parse_range,
    parse_semver,
)


def semver(text: str) -> SemanticVersion:
    found = parse_semver(text)
    assert found is not None, text
    assert str(found) == text
    return found


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.02.3", "1.2.03", "-1.2.3", "v1.2.3", "1.2.3-rc.1",
     "1.2.3+build", "1.2.x", " 1.2.3", "1.2.3\n", "1.2.\u0663", "^1.2.3", "1.2.9999999999"],
)  # fmt: skip
def test_what_is_no_semantic_version(text: str) -> None:
    assert parse_semver(text) is None


def test_versions_are_ordered_by_their_numbers_not_their_text() -> None:
    texts = ["0.9.9", "1.0.0", "1.0.10", "1.2.0", "1.10.0", "2.0.0", "10.0.0"]
    assert sorted(map(semver, reversed(texts))) == list(map(semver, texts))


@pytest.mark.parametrize(
    ("bump", "expected"), [("patch", "1.2.4"), ("minor", "1.3.0"), ("major", "2.0.0")]
)
def test_what_is_behind_the_number_that_rises_becomes_0(bump: Bump, expected: str) -> None:
    assert str(semver("1.2.3").bumped(bump)) == expected


def test_more_than_what_is_needed_is_enough() -> None:
    found = [bump_at_least(asked, needed) for asked in BUMPS for needed in BUMPS]
    assert found == [True, False, False, True, True, False, True, True, True]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("^1.2.3", "1.2.3", "2.0.0"),
        ("^0.2.3", "0.2.3", "0.3.0"),
        ("^0.0.3", "0.0.3", "0.0.4"),
        ("^1.2", "1.2.0", "2.0.0"),
        ("^0.0", "0.0.0", "0.1.0"),
        ("^0.1", "0.1.0", "0.2.0"),
        ("^1", "1.0.0", "2.0.0"),
        ("^0", "0.0.0", "1.0.0"),
        ("^0.0.0", "0.0.0", "0.0.1"),
        ("~1.2.3", "1.2.3", "1.3.0"),
        ("~1.2", "1.2.0", "1.3.0"),
        ("~1", "1.0.0", "2.0.0"),
        ("~0.2.3", "0.2.3", "0.3.0"),
        ("~0", "0.0.0", "1.0.0"),
        ("1.2.3", "1.2.3", "1.2.4"),
    ],
)
def test_a_range_holds_what_npm_says(text: str, low: str, high: str) -> None:
    found = parse_range(text)
    assert found is not None
    assert (str(found.low), str(found.high)) == (low, high)
    assert found.holds(semver(low))
    assert not found.holds(semver(high))
    assert not found.holds(SemanticVersion(0, 0, 0)) or low == "0.0.0"


@pytest.mark.parametrize("text", ["", "^", "~", "1", "1.2", "^1.2.3.4", "^v1", ">=1", "^1.x", "*"])
def test_what_is_no_range(text: str) -> None:
    assert parse_range(text) is None
