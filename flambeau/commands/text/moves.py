"""Formats the moves of aliases for `flambeau models history`.

In: documents of `model_store.records.moves`, from a store or a server. Out: lines.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flambeau.commands.text.tables import UNKNOWN, columns


def move_lines(moves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line per changed alias; one without an alias for a generation without a change.

    Raises:
        KeyError, TypeError: a document is none of a move.
    """
    rows = [["GENERATION", "WHEN", "ALIAS", "FROM", "TO", "WHO", "WHY"]]
    for move in moves:
        for change in move["changes"] or ({"alias": None, "from": None, "to": None},):
            cells = (change["alias"], change["from"], change["to"], move["who"], move["why"])
            rows.append([str(move["generation"]), time_text(move["when"]), *map(_text, cells)])
    return columns(rows)


def state_lines(state: Mapping[str, Any]) -> list[str]:
    """Returns what each alias named at a time, below the move that it is due to.

    Raises:
        KeyError, TypeError: the document is none of a state.
    """
    name, at = _text(state["name"]), time_text(state["at"])
    if not state["generation"]:
        return [f"no alias of {name} named a version at {at}: its first move came later"]
    why = f": {_text(state['why'])}" if state["why"] else ""
    moved = f"{time_text(state['when'])} by {_text(state['who'])}{why}"
    rows = [
        ["ALIAS", "VERSION"],
        *([_text(a), str(v)] for a, v in sorted(state["aliases"].items())),
    ]
    return [f"{name} at {at}, by generation {state['generation']} of {moved}", *columns(rows)]


def time_text(text: object) -> str:
    """Formats a time in ISO 8601 to the second, in UTC; what is none is returned as it is."""
    try:
        found = datetime.fromisoformat(str(text))
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return _text(text)
    return f"{found:%Y-%m-%d %H:%M:%S %Z}"


def _text(value: object) -> str:
    """Formats a cell; control characters, which callers may have sent, as question marks."""
    if value is None:
        return UNKNOWN
    return "".join(c if c.isprintable() else "?" for c in str(value))
