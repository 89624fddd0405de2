"""Shares and durations as people write them: `10%`, `5m`. Pure.

In: text of a command line or a recipe. Out: numbers; and the texts of numbers.
"""

import re

_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_share(text: str) -> float:
    """Returns a share of 1, such as 0.1 for `10%`.

    Raises:
        ValueError: it is none, or over 100%.
    """
    found = _SHARE.fullmatch(text.strip())
    if found is None or float(found[1]) > 100:
        raise ValueError(f"'{text[:40]}' is no share; write a percentage, as in 10%")
    return round(float(found[1]) / 100, 8)


def share_text(share: float) -> str:
    """Returns the text that `parse_share` reads, rounded to a millionth of a percent."""
    return f"{round(share * 100, 6):.6f}".rstrip("0").rstrip(".") + "%"


def parse_duration(text: str) -> float:
    """Returns seconds, such as 300 for `5m`.

    Raises:
        ValueError: it is none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"'{text[:40]}' is no duration; write a number and s, m, h or d, as in 5m")
    return float(found[1]) * _SECONDS[found[2]]


def duration_text(seconds: float) -> str:
    """Returns the text that `parse_duration` reads, in the largest unit that divides it."""
    whole = round(seconds)
    if abs(whole - seconds) > 1e-9 or not whole:
        return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"
    unit = next(name for name in ("d", "h", "m", "s") if whole % _SECONDS[name] == 0)
    return f"{whole // _SECONDS[unit]}{unit}"
