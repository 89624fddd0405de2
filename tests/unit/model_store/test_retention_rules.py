"""Decisions of retention: nothing that is used is deleted, and everything else is."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from model_store.pipelines.graph import parse_part
from model_store.retention.rules import (
    Decision,
    RetentionRule,
    VersionFacts,
    VersionKey,
    decide,
)
from model_store.semver.semver import parse_semver

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
PARTS = st.sampled_from(["finder@^1", "finder@~1.1", "finder@2", "reader@^2", "reader@1"])


@st.composite
def facts_of(draw: st.DrawFn) -> list[VersionFacts]:
    """Draws a store of two models of parts, and one of pipelines."""
    found = []
    for model in ("finder", "reader", "flow"):
        for version in sorted(draw(st.sets(st.integers(1, 9), max_size=6))):
            major, minor = draw(st.integers(1, 2)), draw(st.integers(0, 2))
            age = timedelta(days=draw(st.integers(-3, 40)))
            is_damaged = draw(st.integers(0, 9)) == 0
            parts = draw(st.lists(PARTS, max_size=2)) if model == "flow" and not is_damaged else ()
            found.append(
                VersionFacts(
                    model=model,
                    version=version,
                    created_at=None if is_damaged else NOW - age,
                    semver="" if is_damaged else f"{major}.{minor}.{version}",
                    parts=tuple(map(parse_part, parts)),
                    is_cut_off=draw(st.integers(0, 9)) == 0,
                )
            )
    return found


KEYS = st.tuples(st.sampled_from(["finder", "reader", "flow", "gone"]), st.integers(1, 9))
USES = st.dictionaries(
    KEYS, st.lists(st.sampled_from(["alias canary", "held by a"]), min_size=1, max_size=2)
)
RULES = st.builds(
    RetentionRule, keep_newest=st.integers(1, 4), keep_days=st.sampled_from([0, 0.5, 7, 30])
)
CHOSEN = st.none() | st.sets(st.sampled_from(["finder", "reader", "flow"]))


def needed_parts(kept: list[VersionFacts], versions: list[VersionFacts]) -> set[VersionKey]:
    """Returns what servers run for these pipelines, found in another way: by sorting."""
    found = set()
    whole = [one for one in versions if not one.is_cut_off]
    for part in {part for one in kept for part in one.parts}:
        fitting = [
            ((parsed.major, parsed.minor, parsed.patch) if parsed else (0, 0, 0), one.version)
            for one in whole
            if one.model == part.model and part.fits(one.version, one.semver)
            for parsed in [parse_semver(one.semver)]
        ]
        if fitting:
            found.add((part.model, max(fitting)[1]))
    return found


@given(facts_of(), USES, RULES, CHOSEN)
def test_nothing_that_is_protected_is_deleted_and_everything_else_is(
    versions: list[VersionFacts],
    uses: dict[VersionKey, list[str]],
    rule: RetentionRule,
    chosen: set[str] | None,
) -> None:
    decisions = decide(versions, uses, rule, chosen, NOW)
    assert [one.facts for one in decisions] == versions
    kept = [one.facts for one in decisions if one.is_kept]
    protected = {key for key in uses if key in {one.key for one in versions}}
    for model in {one.model for one in versions}:
        whole = [one for one in versions if one.model == model and not one.is_cut_off]
        readable = [one for one in whole if one.created_at is not None]
        protected |= {one.key for one in readable[-rule.keep_newest :]}
        protected |= {
            one.key
            for one in whole
            if one.created_at is None or one.created_at > NOW - timedelta(days=rule.keep_days)
        }
        if chosen is not None and model not in chosen:
            protected |= {one.key for one in versions if one.model == model}
    protected |= needed_parts(kept, versions)
    assert {one.key for one in kept} == protected


def decided(
    *versions: VersionFacts, uses: dict[VersionKey, list[str]] | None = None
) -> dict[VersionKey, Decision]:
    rule = RetentionRule(keep_newest=1, keep_days=7)
    return {one.facts.key: one for one in decide(versions, uses or {}, rule, None, NOW)}


def old(model: str, version: int, semver: str = "", *parts: str) -> VersionFacts:
    return VersionFacts(
        model=model,
        version=version,
        created_at=NOW - timedelta(days=100),
        semver=semver,
        parts=tuple(map(parse_part, parts)),
    )


def test_each_reason_is_named() -> None:
    found = decided(
        old("finder", 1, "1.0.0"),
        old("finder", 2, "1.1.0"),
        old("finder", 3, "2.0.0"),
        old("flow", 1, "1.0.0", "finder@^1"),
        old("flow", 2, "1.0.1", "finder@2"),
        uses={("flow", 1): ["alias canary"]},
    )
    assert {key: one.reasons for key, one in found.items()} == {
        ("finder", 1): (),
        ("finder", 2): ("part of the pipeline flow 1", "part of the pipeline flow 2"),
        ("finder", 3): ("among the newest 1",),
        ("flow", 1): ("alias canary",),
        ("flow", 2): ("among the newest 1",),
    }


def test_a_pipeline_that_is_deleted_keeps_no_part() -> None:
    versions = [
        old("finder", 1, "1.0.0"),
        old("finder", 2, "2.0.0"),
        old("flow", 1, "1.0.0", "finder@1"),
        old("flow", 2, "2.0.0", "finder@2"),
    ]
    found = decided(*versions)
    assert [key for key, one in found.items() if not one.is_kept] == [("finder", 1), ("flow", 1)]
    of_one = decide(versions, {}, RetentionRule(keep_newest=1, keep_days=7), {"finder"}, NOW)
    assert of_one[0].reasons == ("part of the pipeline flow 1",)


def test_a_damaged_version_is_none_of_the_newest() -> None:
    damaged = VersionFacts(model="digits", version=3)
    found = decided(old("digits", 1), old("digits", 2), damaged)
    assert [one.is_kept for one in found.values()] == [False, True, True]


def test_the_limits_of_age() -> None:
    week = timedelta(days=7)
    ages = [week, week - timedelta(microseconds=1), -week]
    versions = [
        VersionFacts(model="digits", version=n, created_at=NOW - age)
        for n, age in enumerate(ages, 1)
    ]
    found = decided(*versions, old("digits", 9))
    assert [one.is_kept for one in found.values()] == [False, True, True, True]
