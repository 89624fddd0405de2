"""Compares two values of JSON.

Members are compared in the old one's order, whatever their order in the new one; the values are
walked without recursion, for they may be nested deeply.
"""

import json
from collections.abc import Iterator
from typing import Any

from flambeau.replay.comparison.findings import Findings, value_text
from flambeau.replay.comparison.json_paths import IgnoredPaths

MISSING = "(none)"


def parse_json(body: bytes) -> Any:
    """Parses a body; NaN and Infinity are numbers, as some servers write them.

    Raises:
        ValueError: it is no JSON, or nested too deeply to read.
    """
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def compare_json(found: Findings, old: Any, new: Any, ignored: IgnoredPaths) -> None:
    """Adds what differs between two values."""
    open_values: list[Pairs] = [iter([("", old, new)])]
    while open_values:
        pair = next(open_values[-1], None)
        if pair is None:
            open_values.pop()
            continue
        path, one, other = pair
        if isinstance(one, dict) and isinstance(other, dict):
            open_values.append(_members(found, path, one, other, ignored))
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            open_values.append(_elements(found, path, one, other, ignored))
        elif _is_number(one) and _is_number(other):
            found.numbers(path or "body", one, other)
        elif isinstance(one, str) and isinstance(other, str):
            found.texts(path or "body", one, other)
        elif type(one) is not type(other) or one != other:
            found.add("body", path or "body", value_text(one), value_text(other))


Pairs = Iterator[tuple[str, Any, Any]]


def _members(
    found: Findings, path: str, old: dict[str, Any], new: dict[str, Any], ignored: IgnoredPaths
) -> Pairs:
    for name in [*old, *(name for name in new if name not in old)]:
        place = f"{path}.{name}" if path else name
        if place in ignored:
            continue
        if name in old and name in new:
            yield place, old[name], new[name]
        else:
            shown = (value_text(v[name]) if name in v else MISSING for v in (old, new))
            found.add("body", place, *shown)


def _elements(
    found: Findings, path: str, old: list[Any], new: list[Any], ignored: IgnoredPaths
) -> Pairs:
    for index, (one, other) in enumerate(zip(old, new, strict=True)):
        if type(one) is type(other) is float and one == other:
            continue  # without a path, which costs more than the comparison
        place = f"{path}[{index}]"
        if place not in ignored:
            yield place, one, other


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
