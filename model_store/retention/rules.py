"""Decides which versions are kept, and why. Pure rules, no I/O.

In: the versions of a store, what uses them, a rule and a time. Out: a decision for each version.

Rules: a version that something uses is kept, be it an alias, a rollout or a server; so is the
newest version in the range of each step of a pipeline version that is kept, since servers run that
one. Everything else is kept by number and age alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from model_store.pipelines.graph import Part
from model_store.semver.semver import FIRST, SemanticVersion, parse_semver

VersionKey = tuple[str, int]
"""Model and number of a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """Facts of a version that decide about it."""

    model: str
    version: int
    created_at: datetime | None = None
    """Time of its publication; None if its manifest is damaged, so that it has none."""
    semver: str = ""
    """Its semantic version; empty for none."""
    parts: tuple[Part, ...] = ()
    """The parts that it names, if it is a pipeline."""
    is_cut_off: bool = False
    """True if it has a tombstone: its deletion began, and did not end."""

    @property
    def key(self) -> VersionKey:
        """Model and number."""
        return self.model, self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Versions to keep, although nothing uses them."""

    keep_newest: int
    """Newest versions of each model, by number; at least 1."""
    keep_days: float
    """Days since publication."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A version, and the reasons to keep it; it is deleted if there is none."""

    facts: VersionFacts
    reasons: tuple[str, ...]

    @property
    def is_kept(self) -> bool:
        """True if the version is kept."""
        return bool(self.reasons)


def decide(
    versions: Sequence[VersionFacts],
    uses: Mapping[VersionKey, Sequence[str]],
    rule: RetentionRule,
    models: Collection[str] | None,
    now: datetime,
) -> list[Decision]:
    """Decides for each version of a store.

    Args:
        versions: all versions of the store, those of other models too: pipelines among them name
            parts.
        uses: reasons by version that do not depend on the rule, such as the aliases that name it.
        rule: the versions to keep, although nothing uses them.
        models: models of which versions are deleted; None for all. Others are kept whole.
        now: the time, with its zone.

    Returns:
        Decisions in the order of `versions`.
    """
    reasons = {one.key: list(uses.get(one.key, ())) for one in versions}
    for one in versions:
        if models is not None and one.model not in models:
            reasons[one.key].append("not asked for")
    for key, reason in (*_newest(versions, rule), *_young(versions, rule, now)):
        reasons[key].append(reason)
    kept = [one for one in versions if reasons[one.key]]
    while kept:  # a pipeline may be kept for another one, though no publisher makes such
        named = [(key, reason) for key, reason in _parts(versions, kept) if key in reasons]
        fresh = {key for key, _ in named if not reasons[key]}
        for key, reason in named:
            if reason not in reasons[key]:
                reasons[key].append(reason)
        kept = [one for one in versions if one.key in fresh]
    return [Decision(one, tuple(reasons[one.key])) for one in versions]


def _newest(
    versions: Iterable[VersionFacts], rule: RetentionRule
) -> Iterable[tuple[VersionKey, str]]:
    """Yields the newest versions of each model, of those that can be served."""
    numbers: dict[str, list[int]] = {}
    for one in versions:
        if not one.is_cut_off and one.created_at is not None:
            numbers.setdefault(one.model, []).append(one.version)
    reason = f"among the newest {rule.keep_newest}"
    for model, found in numbers.items():
        yield from (((model, number), reason) for number in sorted(found)[-rule.keep_newest :])


def _young(
    versions: Iterable[VersionFacts], rule: RetentionRule, now: datetime
) -> Iterable[tuple[VersionKey, str]]:
    """Yields versions younger than the rule says; those of the future are young."""
    for one in versions:
        if one.is_cut_off:
            continue
        if one.created_at is None:
            yield one.key, "its manifest is damaged, so that its age is unknown"
        elif now - one.created_at < timedelta(days=rule.keep_days):
            yield one.key, f"younger than {rule.keep_days:g} days"


def _parts(
    versions: Iterable[VersionFacts], pipelines: Iterable[VersionFacts]
) -> Iterable[tuple[VersionKey, str]]:
    """Yields the newest version of each part of these pipelines, and all that are as new."""
    by_model: dict[str, list[VersionFacts]] = {}
    for one in versions:
        if not one.is_cut_off:
            by_model.setdefault(one.model, []).append(one)
    for pipeline in pipelines:
        for part in pipeline.parts:
            fitting = [
                one for one in by_model.get(part.model, ()) if part.fits(one.version, one.semver)
            ]
            newest = max(map(_rank, fitting), default=FIRST)
            for one in fitting:
                if isinstance(part.wanted, int) or _rank(one) == newest:
                    yield one.key, f"part of the pipeline {pipeline.model} {pipeline.version}"


def _rank(one: VersionFacts) -> SemanticVersion:
    return parse_semver(one.semver) or FIRST
