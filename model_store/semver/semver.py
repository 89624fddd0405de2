"""Parses semantic versions, and ranges of them. Pure.

    1.4.0         one version
    ^1.4          1.4.0 and later, below the next version that may break callers: 2.0.0
    ~1.4          1.4.0 and later, below the next minor version: 1.5.0

In: text. Out: versions that can be compared, and ranges that versions can be tested against.

Sources: https://semver.org/spec/v2.0.0.html for versions, of which ours have neither pre-releases
nor build metadata; the carets and tildes of npm's node-semver for ranges. As there, numbers that a
range omits are 0, and a caret keeps the leftmost non-zero number: `^0.2.3` ends below 0.3.0, and
`^0.0.3` below 0.0.4.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Bump = Literal["patch", "minor", "major"]
BUMPS: tuple[Bump, ...] = get_args(Bump)
"""Bumps, smallest first."""

_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
SEMVER_PATTERN = rf"^{_NUMBER}\.{_NUMBER}\.{_NUMBER}$"
_RANGE = re.compile(rf"[\^~]{_NUMBER}(?:\.{_NUMBER}){{0,2}}")


@dataclass(frozen=True, slots=True, order=True)
class SemanticVersion:
    """`MAJOR.MINOR.PATCH`."""

    major: int
    minor: int
    patch: int

    def bumped(self, bump: Bump) -> "SemanticVersion":
        """Returns the next version for a bump; the numbers after the raised one become 0."""
        match bump:
            case "major":
                return SemanticVersion(self.major + 1, 0, 0)
            case "minor":
                return SemanticVersion(self.major, self.minor + 1, 0)
            case "patch":
                return SemanticVersion(self.major, self.minor, self.patch + 1)

    def __str__(self) -> str:
        """Returns `MAJOR.MINOR.PATCH`."""
        return f"{self.major}.{self.minor}.{self.patch}"


FIRST = SemanticVersion(1, 0, 0)
"""Semantic version of a model's first version: 1.0.0, as callers may rely on its signature."""


@dataclass(frozen=True, slots=True)
class SemverRange:
    """Versions from `low` (inclusive) to `high` (exclusive)."""

    low: SemanticVersion
    high: SemanticVersion

    def holds(self, version: SemanticVersion) -> bool:
        """Returns True if a version is in the range."""
        return self.low <= version < self.high


def parse_semver(text: str) -> SemanticVersion | None:
    """Parses a version; None if it is invalid, or has a pre-release or build metadata."""
    if re.match(SEMVER_PATTERN, text) is None or text.endswith("\n"):
        return None
    return SemanticVersion(*map(int, text.split(".")))


def parse_range(text: str) -> SemverRange | None:
    """Parses a range: `^` or `~` with one to three numbers, or one full version.

    Returns:
        The range, or None if the text is not one.
    """
    exact = parse_semver(text)
    if exact is not None:
        return SemverRange(exact, exact.bumped("patch"))
    if _RANGE.fullmatch(text) is None:
        return None
    given = [int(number) for number in text[1:].split(".")]
    low = SemanticVersion(*given, *[0] * (3 - len(given)))
    if text[0] == "~":
        return SemverRange(low, low.bumped("minor" if len(given) > 1 else "major"))
    # The first given number that is not 0 stays; if all are 0, the last given number stays.
    kept = next((place for place, number in enumerate(given) if number), len(given) - 1)
    return SemverRange(low, low.bumped(BUMPS[2 - kept]))


def bump_at_least(asked: Bump, needed: Bump) -> bool:
    """Returns True if the requested bump is at least as large as the required one."""
    return BUMPS.index(asked) >= BUMPS.index(needed)
