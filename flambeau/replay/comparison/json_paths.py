"""Paths within JSON bodies, to leave some out of a comparison.

`outputs[0].name` is a member of an element; `*` any member, `[*]` any element, and `**` any number
of members and elements: `**.pid` is every member `pid`.
"""

import re
from collections.abc import Sequence

from flambeau.replay.errors import RulesError

_STEP = re.compile(r"^\*\*\.|\*\*|\*|\[\*\]|\[\d+\]|\.|[^.\[\]*]+")
_EXPRESSIONS = {"**.": r"(?:.*\.)?", "**": ".*", "*": r"[^.\[\]]+", "[*]": r"\[\d+\]"}
MAX_PATH = 1000
"""Characters of a path."""


class IgnoredPaths:
    """Paths that are left out.

    Args:
        patterns: the paths.

    Raises:
        RulesError: one is no path.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        sources = [_expression(pattern) for pattern in patterns]
        self._expression = re.compile("|".join(sources)) if sources else None

    def __contains__(self, path: str) -> bool:
        """Returns True if a path is left out."""
        found = self._expression
        return found is not None and len(path) <= MAX_PATH and bool(found.fullmatch(path))


def _expression(pattern: str) -> str:
    steps = _STEP.findall(pattern)
    if not pattern or "".join(steps) != pattern or len(pattern) > MAX_PATH or "$" in pattern[:1]:
        raise RulesError(
            f"--ignore {pattern!r} is no path; give one such as outputs[*].name or **.pid"
        )
    return "".join(_EXPRESSIONS.get(step) or re.escape(step) for step in steps)
