"""Shares, durations and limits of guards on a command line."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import typer

from model_store.rollouts.amounts import parse_duration, parse_share

T = TypeVar("T")


def share(text: str, option: str) -> float:
    """Parses `10%`.

    Raises:
        BadParameter: it is no share.
    """
    return _parsed(parse_share, text, option)


def duration(text: str, option: str) -> float:
    """Parses `5m`, in seconds.

    Raises:
        BadParameter: it is no duration.
    """
    return _parsed(parse_duration, text, option)


def shares(text: str, option: str) -> list[float]:
    """Parses `1%,10%,100%`.

    Raises:
        BadParameter: a part is no share.
    """
    return [share(part, option) for part in text.split(",")]


def changed_guards(texts: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Parses limits of guards: `latency.ratio=1.5`, `disagreement.limit=2%`, `latency=off`.

    Raises:
        BadParameter: one is none, or a guard is both off and limited.
    """
    found: dict[str, dict[str, Any] | None] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        guard, dot, field = name.partition(".")
        before = found.get(guard, {})
        if separator and not dot and value == "off" and not before:
            found[guard] = None
        elif separator and dot and guard and field and value and before is not None:
            found[guard] = {**before, field: _value(value)}
        else:
            raise typer.BadParameter(
                f"'{text}' sets no guard; write GUARD.FIELD=VALUE, as in latency.ratio=1.5, or "
                "GUARD=off, and not both of one guard",
                param_hint="--guard",
            )
    return found


def arm(text: str) -> dict[str, Any]:
    """Parses `4=50%`: a version and its share.

    Raises:
        BadParameter: it is none.
    """
    version, separator, given = text.partition("=")
    if not (separator and version.isdecimal() and version.isascii() and len(version) < 10):
        raise typer.BadParameter(f"'{text}' is no version with its share; write it as in 4=50%")
    return {"version": int(version), "share": share(given, "VERSION=SHARE")}


def _value(text: str) -> float | str | list[float]:
    """Returns a number, a share, a list of numbers, or else the text."""
    if text.endswith("%"):
        return share(text, "--guard")
    try:
        if "," in text:
            return [float(part) for part in text.split(",")]
        return float(text)
    except ValueError:
        return text


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
