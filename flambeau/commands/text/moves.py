"""Formats moves of aliases, and the history of them.

In: documents of `model_store.records.moves` and `approvals.made_move`, from a store or a server.
Out: lines.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from flambeau.commands.text.tables import UNKNOWN, columns
from model_store.rollouts.finding_text import finding_text

INDENT = "            "
"""Space before what a move was decided by, as wide as the column of generations."""


def move_line(model: str, alias: str, moved: Mapping[str, Any]) -> str:
    """Describes a move of an alias, and what it ended.

    Args:
        model: the model's name.
        alias: the alias.
        moved: the new pointers, with `changes` and `ended`; older servers send neither.

    Raises:
        KeyError, TypeError: the document is none of a move.
    """
    version, ended = moved["aliases"][alias], moved.get("ended") or ()
    named = f"→ {version}"
    if moved.get("changes") == []:
        named = f"stays at {version}" if ended else f"names {version} already"
    line = f"{model} {alias} {named} (generation {moved['generation']})"
    return printable(f"{line}{ended_text(moved)}")


def ended_text(moved: Mapping[str, Any]) -> str:
    """Returns what a move ended, to follow its line; empty for nothing."""
    ended = moved.get("ended") or ()
    return f", ends {' and '.join(ended)}" if ended else ""


def move_lines(moves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line per changed alias, rollout, shadow or split, and below it what judged it.

    A generation without a change has a line without an alias.

    Raises:
        KeyError, TypeError: a document is none of a move.
    """
    rows = [["GENERATION", "WHEN", "ALIAS", "FROM", "TO", "WHO", "WHY"]]
    texts: list[list[str]] = [[]]
    for move in moves:
        traffic = move.get("traffic_changes", ())
        aliases = move["changes"] or (
            [] if traffic else [{"alias": None, "from": None, "to": None}]
        )
        named = [(one["alias"], one["from"], one["to"], move["why"]) for one in aliases]
        why = "" if aliases or not move["why"] else f": {move['why']}"
        named += [(one["kind"], None, None, f"{one['text']}{why}") for one in traffic]
        for alias, before, after, said in named:
            cells = (alias, before, after, _persons(move), said)
            rows.append([str(move["generation"]), time_text(move["when"]), *map(printable, cells)])
            texts.append([])
        texts[-1] += evidence_lines(move.get("evidence"))
    lines = columns(rows)
    return [line for row, below in zip(lines, texts, strict=True) for line in (row, *below)]


def evidence_lines(evidence: Any) -> list[str]:
    """Describes what a move was decided by, a line a guard; nothing if no judge decided it."""
    findings = evidence.get("findings", ()) if isinstance(evidence, Mapping) else ()
    lines = []
    for one in findings if isinstance(findings, Sequence) else ():
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            lines.append(printable(f"{INDENT}{one['guard']} {one['state']}: {finding_text(one)}"))
    return lines


def state_lines(state: Mapping[str, Any]) -> list[str]:
    """Returns what each alias named at a time, below the move that it is due to.

    Raises:
        KeyError, TypeError: the document is none of a state.
    """
    name, at = printable(state["name"]), time_text(state["at"])
    if not state["generation"]:
        return [f"no alias of {name} named a version at {at}: its first move came later"]
    why = f": {printable(state['why'])}" if state["why"] else ""
    moved = f"{time_text(state['when'])} by {printable(state['who'])}{why}"
    rows = [
        ["ALIAS", "VERSION"],
        *([printable(a), str(v)] for a, v in sorted(state["aliases"].items())),
    ]
    return [f"{name} at {at}, by generation {state['generation']} of {moved}", *columns(rows)]


def time_text(text: object) -> str:
    """Formats a time in ISO 8601 to the second, in UTC; what is none is returned as it is."""
    try:
        found = datetime.fromisoformat(str(text))
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return printable(text)
    return f"{found:%Y-%m-%d %H:%M:%S %Z}"


def _persons(move: Mapping[str, Any]) -> str:
    approval = move.get("approval")
    return f"{move['who']}, approved by {approval['by']}" if approval else str(move["who"])


def printable(value: object) -> str:
    """Formats a cell; control characters, which callers may have sent, as question marks."""
    if value is None:
        return UNKNOWN
    return "".join(c if c.isprintable() else "?" for c in str(value))
