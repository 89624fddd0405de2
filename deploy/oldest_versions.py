"""Prints a constraints file for pip: the oldest supported version of each user requirement.

In: the requirements in `pyproject.toml`, with all extras except those of developers. Out: a line
`name==version` for each, its lower bound; if extras differ, the highest. `make test-oldest`
installs with it and runs the tests there, so that every bound is a tested version. Run by an
interpreter that has nothing but pip.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

from deploy.lock import ROOT

FOR_DEVELOPERS = frozenset({"cluster", "dev", "docs", "k8s", "test"})
"""Extras with tools; those are installed in their newest versions."""
REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[[\w, .-]*\])?\s*([^;]*?)\s*(?:;.*)?")
LOWER_BOUND = re.compile(r"(?:>=|==|~=)\s*(\d+(?:\.\d+)*)(\.\*)?")


class OldestVersionError(Exception):
    """A requirement without an oldest version."""


def main() -> int:
    """Prints the lines. Returns the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print(*constraints(users_requirements(project)), sep="\n")
    return 0


def users_requirements(project: dict[str, Any]) -> Iterator[str]:
    """Yields the requirements of flambeau and its user extras, except extras of extras."""
    extras = project["optional-dependencies"]
    for name in ["", *sorted(extras.keys() - FOR_DEVELOPERS)]:
        listed = extras[name] if name else project["dependencies"]
        yield from (one for one in listed if not one.startswith("flambeau["))


def constraints(requirements: Iterable[str]) -> list[str]:
    """Returns one line `name==version` for each distribution, sorted by name.

    Raises:
        OldestVersionError: a requirement has no lower bound, or not that of a release.
    """
    oldest: dict[str, str] = {}
    for requirement in requirements:
        name, version = lower_bound(requirement)
        oldest[name] = max(oldest.get(name, "0"), version, key=_release)
    return [f"{name}=={version}" for name, version in sorted(oldest.items())]


def lower_bound(requirement: str) -> tuple[str, str]:
    """Returns the normalised name, and the oldest version that fits.

    Raises:
        OldestVersionError: the requirement has no lower bound.
    """
    parsed = REQUIREMENT.fullmatch(requirement)
    parts = parsed[2].split(",") if parsed else []
    found = [bound for part in parts if (bound := LOWER_BOUND.fullmatch(part.strip()))]
    if parsed is None or len(found) != 1:
        raise OldestVersionError(
            f"requirement {requirement!r} does not say its oldest version; write name>=version"
        )
    name = re.sub(r"[-_.]+", "-", parsed[1]).lower()
    return name, f"{found[0][1]}.0" if found[0][2] else found[0][1]


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    sys.exit(main())
