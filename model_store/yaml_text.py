"""YAML that somebody else wrote: whatever is wrong with it is one error.

In: text. Out: what it says.

Rule kept here: aliases are told apart from what they stand for only by identity, so a page of them
may stand for more than any memory holds, or for itself; who walks through it later need not fear.
"""

from typing import Any

import yaml

MAX_MARKS = 50_000
"""Characters that part one value from the next: PyYAML takes some 50 µs for each of them."""
MARKS = "\n,:[{"
MAX_PARTS = 1_000_000
"""Values that a document may come to, once every alias is written out."""


class YamlError(ValueError):
    """The text is no YAML, or no document that can be walked through."""


def read_yaml(text: str | bytes, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Reads one document.

    Args:
        text: UTF-8, one document.
        loader: which YAML it is.

    Raises:
        YamlError: it is no YAML, holds itself, or comes to more than `MAX_MARKS` or `MAX_PARTS`.
    """
    marks = sum(text.count(m) if isinstance(text, str) else text.count(m.encode()) for m in MARKS)
    if marks > MAX_MARKS:
        raise YamlError(f"it has up to {marks:,} values, and at most {MAX_MARKS:,} are read")
    try:
        document = yaml.load(text, loader)  # noqa: S506 - the loader is a SafeLoader
        parts = _parts(document, {})
    except YamlError:
        raise
    except Exception as error:
        # A 30th of February is a ValueError here, `!!bool x` a KeyError, a thousand brackets are a
        # RecursionError: PyYAML lets through whatever its parts raise.
        raise YamlError(_words(error)) from error
    if parts > MAX_PARTS:
        raise YamlError(
            f"its aliases stand for {parts:.2g} values, and it may have {MAX_PARTS:,}; write out "
            "what is meant"
        )
    return document


def _words(error: Exception) -> str:
    """The fault on one line, with the line and column of the text where that is known."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}"
        return f"{where}: {', '.join(filter(None, (error.context, error.problem)))}"
    kind = "" if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"


def _parts(value: Any, known: dict[int, int]) -> int:
    """Counts the values in a value, each as often as an alias names it.

    Args:
        value: of a document.
        known: what was found, by the identity of lists and mappings; 0 while it is looked through.

    Raises:
        YamlError: it holds itself.
    """
    if not isinstance(value, dict | list):
        return 1
    if id(value) in known:
        if known[id(value)] == 0:
            raise YamlError("an alias stands for what it is part of; write out what is meant")
        return known[id(value)]
    known[id(value)] = 0
    inner = value.values() if isinstance(value, dict) else value
    known[id(value)] = 1 + sum(_parts(part, known) for part in inner)
    return known[id(value)]
