"""Semantic versions, and ranges of them. Pure.

    1.4.0         one version
    ^1.4          1.4.0 and later, before the next number that may break callers: 2.0.0
    ~1.4          1.4.0 and later, before the next minor one: 1.5.0

In: text. Out: versions that can be compared, and whether one fits a range.

Sources: https://semver.org/spec/v2.0.0.html for versions, of which ours have neither pre-releases
nor build metadata; the carets and tildes of npm's node-semver for ranges. As there, what a range
leaves out is 0, and the leftmost number that is not 0 is the one a caret keeps: `^0.2.3` goes up to
0.3.0, and `^0.0.3` to 0.0.4.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Bump = Literal["patch", "minor", "major"]
BUMPS: tuple[Bump, ...] = get_args(Bump)
"""The smallest first."""

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
        """The next version of a kind; the numbers behind the one that rises become 0."""
        match bump:
            case "major":
                return SemanticVersion(self.major + 1, 0, 0)
            case "minor":
                return SemanticVersion(self.major, self.minor + 1, 0)
            case "patch":
                return SemanticVersion(self.major, self.minor, self.patch + 1)

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.major}.{self.minor}.{self.patch}"


FIRST = SemanticVersion(1, 0, 0)
"""Of the first version of a model: whoever is served by it may count on its signature."""


@dataclass(frozen=True, slots=True)
class SemverRange:
    """The versions from `low` on, before `high`."""

    low: SemanticVersion
    high: SemanticVersion

    def holds(self, version: SemanticVersion) -> bool:
        """Whether a version fits."""
        return self.low <= version < self.high


def parse_semver(text: str) -> SemanticVersion | None:
    """The version that a text is; None if it is none, or has a pre-release or build metadata."""
    if re.match(SEMVER_PATTERN, text) is None or text.endswith("\n"):
        return None
    return SemanticVersion(*map(int, text.split(".")))


def parse_range(text: str) -> SemverRange | None:
    """The range that a text is: `^` or `~` with one to three numbers, or one whole version.

    Returns:
        None if it is none.
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
    # What is given and not 0 stays; where all that is given is 0, its last number does.
    kept = next((place for place, number in enumerate(given) if number), len(given) - 1)
    return SemverRange(low, low.bumped(BUMPS[2 - kept]))


def bump_at_least(asked: Bump, needed: Bump) -> bool:
    """Whether what was asked for is as much as what is needed."""
    return BUMPS.index(asked) >= BUMPS.index(needed)
