"""Reads untrusted YAML; every fault in it is one error type.

In: text. Out: the document.

Rule: the expanded size is bounded. An alias is the same Python object as its anchor, so one page of
aliases may expand beyond any memory, or contain itself; such a document is refused.
"""

from typing import Any

import yaml

MAX_MARKS = 50_000
"""Limit of separator characters: PyYAML takes some 50 µs for each of them."""
MARKS = "\n,:[{"
MAX_PARTS = 1_000_000
"""Limit of the values in a document with all aliases expanded."""
MAX_NUMBER_BITS = 1024
"""Limit of a whole number, as large as the largest float: Python does not format one of over 4,300
digits, which YAML can write in another base."""


class YamlError(ValueError):
    """The text is not YAML, or its document is too large or contains itself."""


def read_yaml(text: str | bytes, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Reads one document.

    Args:
        text: UTF-8, one document.
        loader: loader for the dialect of YAML.

    Raises:
        YamlError: it is not YAML, contains itself, or exceeds `MAX_MARKS`, `MAX_PARTS` or
            `MAX_NUMBER_BITS`.
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
        # RecursionError: PyYAML does not wrap the errors of its parts.
        raise YamlError(_words(error)) from error
    if parts > MAX_PARTS:
        raise YamlError(
            f"its aliases stand for {parts:.2g} values, and it may have {MAX_PARTS:,}; write out "
            "what is meant"
        )
    return document


def _words(error: Exception) -> str:
    """Returns the fault on one line, with the line and column of the text if known."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}"
        return f"{where}: {', '.join(filter(None, (error.context, error.problem)))}"
    kind = "" if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"


def _parts(value: Any, known: dict[int, int]) -> int:
    """Counts the values in a value, with aliases expanded.

    Args:
        value: a value of the document.
        known: counts by identity of lists and mappings; 0 while a count is in progress.

    Raises:
        YamlError: it contains itself, or a number that is too large.
    """
    if not isinstance(value, dict | list):
        _check_number(value)
        return 1
    if id(value) in known:
        if known[id(value)] == 0:
            raise YamlError("an alias refers to a value that contains it; write the values out")
        return known[id(value)]
    known[id(value)] = 0
    if isinstance(value, dict):
        for key in value:
            _check_number(key)
    inner = value.values() if isinstance(value, dict) else value
    known[id(value)] = 1 + sum(_parts(part, known) for part in inner)
    return known[id(value)]


def _check_number(value: Any) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS:
        raise YamlError(
            f"a whole number has {value.bit_length():,} bits, and may have {MAX_NUMBER_BITS:,}"
        )
