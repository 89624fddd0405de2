"""What differs between two answers, as far as the rules of a comparison see it.

Rules:
- two integers are equal or not, as classes, counts and ids are; a tolerance is for fractions;
- two numbers of which one has a fraction may differ by `absolute + relative * |old|`;
- texts are equal if only numbers within the tolerance, ids (UUID), times (ISO 8601, HTTP) and the
  address of the server itself differ.
"""

import json
import math
import re
import sys
from dataclasses import dataclass
from typing import TypeVar

from flambeau.replay.records import Difference, Kind

MAX_DIFFERENCES = 10
"""Differences of one request that are kept; the others are counted."""
MAX_SHOWN = 80
"""Characters of a value in a report."""
BY_TOLERANCE, BY_NAMES = "tolerance", "ids and times"

Text = TypeVar("Text", str, bytes)

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_INTEGER = re.compile(r"[-+]?\d+")
_CHANGING = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:?\d\d)?"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT"
)
"""UUIDs (RFC 9562), times of ISO 8601, and dates of HTTP (RFC 9110, 5.6.7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of the comparison of answers.

    Attributes:
        relative: tolerance as a part of the old number.
        absolute: tolerance beside it.
        headers: names in lower case of the headers that are compared; `*` for all that do not
            change by themselves.
        ignored: paths within JSON bodies that are left out; see `json_paths.py`.
        normalises: True if ids, times and the servers' own addresses are equal.
        origins: addresses of both servers, old and new, as they stand in bodies.
    """

    relative: float = 1e-3
    absolute: float = 1e-5
    headers: tuple[str, ...] = ("content-type",)
    ignored: tuple[str, ...] = ()
    normalises: bool = True
    origins: tuple[str, str] = ("", "")


class Findings:
    """Collects the differences of one pair of answers.

    Attributes:
        differences: the first ones.
        count: number of all.
        largest: largest absolute difference of two finite numbers.
        by_rules: rules that made something equal.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.differences: list[Difference] = []
        self.count = 0
        self.largest = 0.0
        self.by_rules: set[str] = set()

    def add(self, kind: Kind, place: str, old: str, new: str) -> None:
        """Adds a difference; values are shown as they are given, shortened."""
        self.count += 1
        if len(self.differences) < MAX_DIFFERENCES:
            shown = (_shortened(old), _shortened(new))
            self.differences.append(
                Difference(kind=kind, place=_shortened(place), old=shown[0], new=shown[1])
            )

    def numbers(self, place: str, old: float, new: float) -> None:
        """Compares two numbers."""
        if not self._are_close(old, new):
            self.add("body", place, json.dumps(old), json.dumps(new))

    def texts(self, place: str, old: str, new: str) -> None:
        """Compares two texts."""
        if old == new:
            return
        by_names = False
        if self.rules.normalises:
            origins = self.rules.origins
            by_names = _names(old, origins[0]) != _names(new, origins[1])
            old, new = _normalised(old, origins[0]), _normalised(new, origins[1])
        if old == new or self._agree_but_for_numbers(old, new):
            self.by_rules |= {BY_NAMES} if by_names else set()
            return
        at = first_unlike(old, new)
        start = max(0, at - MAX_SHOWN // 4)
        where = f", from character {start}" if start else ""
        shown = (value_text(text[start : start + MAX_SHOWN]) for text in (old, new))
        self.add("body", f"{place}{where}", *shown)

    def _agree_but_for_numbers(self, old: str, new: str) -> bool:
        if _NUMBER.split(old) != _NUMBER.split(new):
            return False
        pairs = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
        return all(one == other or self._texts_are_close(one, other) for one, other in pairs)

    def _texts_are_close(self, old: str, new: str) -> bool:
        if _INTEGER.fullmatch(old) and _INTEGER.fullmatch(new):
            return False
        return self._are_close(float(old), float(new))

    def _are_close(self, old: float, new: float) -> bool:
        if type(old) is int and type(new) is int:
            return old == new
        try:
            old, new = float(old), float(new)
        except OverflowError:  # an integer beyond FP64 beside a fraction
            return False
        if old == new or (math.isnan(old) and math.isnan(new)):
            return True
        if not (math.isfinite(old) and math.isfinite(new)):
            return False
        self.largest = max(self.largest, min(abs(old - new), sys.float_info.max))
        if abs(old - new) > self.rules.absolute + self.rules.relative * abs(old):
            return False
        self.by_rules.add(BY_TOLERANCE)
        return True


def value_text(value: object) -> str:
    """Shows a value of JSON in a line."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, str):
        return json.dumps(value[:MAX_SHOWN])
    return json.dumps(value)


def _names(text: str, origin: str) -> list[str]:
    own = [origin] if origin and origin in text else []
    return own + [found[0] for found in _CHANGING.finditer(text)]


def _normalised(text: str, origin: str) -> str:
    return _CHANGING.sub("<id or time>", text.replace(origin, "<server>") if origin else text)


def first_unlike(old: Text, new: Text) -> int:
    """Returns the index of the first element that differs, or the length of the shorter one."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shortened(text: str) -> str:
    """Returns text that a report can hold: not long, and without lone surrogates."""
    shown = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
    return shown.encode(errors="backslashreplace").decode()
