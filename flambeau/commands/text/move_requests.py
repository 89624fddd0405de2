"""Formats requests for moves that need two persons.

In: documents of `model_store.approvals.move_request`, from a server. Out: lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flambeau.commands.text.moves import ended_text, printable, time_text
from flambeau.commands.text.tables import columns
from model_store.rollouts.amounts import duration_text, share_text


def request_lines(requests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line per request.

    Raises:
        KeyError, TypeError: a document is none of a request.
    """
    rows = [["REQUEST", "STATE", "MOVE", "WHO", "WHY", "UNTIL", "DECIDED BY", "REASON"]]
    for one in requests:
        if "error" in one:
            number, reason = str(one["number"]), printable(one["error"])
            rows.append([number, "unreadable", "", "", "", "", "", reason])
            continue
        decision = one["decision"] or {}
        cells = (
            one["number"],
            one["state"],
            move_text(one),
            one["who"],
            one["move"]["why"],
            time_text(one["until"]),
            decision.get("who", ""),
            decision.get("why", ""),
        )
        rows.append([*map(printable, cells)])
    return columns(rows)


def waiting_line(request: Mapping[str, Any], url: str) -> str:
    """Describes a request that was recorded, and how another person approves it.

    Raises:
        KeyError, TypeError: the document is none of a request.
    """
    model, number = printable(request["model"]), request["number"]
    return (
        f"{model} {printable(move_text(request))} waits for a second person until "
        f"{time_text(request['until'])}: flambeau models approve {model} {number} --at {url}"
    )


def approved_line(model: str, moved: Mapping[str, Any]) -> str:
    """Describes the move that an approval made.

    Raises:
        KeyError, TypeError: the document is none of pointers.
    """
    running = moved.get("traffic") or {}
    traffic = [kind for kind in ("rollout", "shadow", "split") if running.get(kind)]
    named = [f"{alias} → {version}" for alias, version in sorted(moved["aliases"].items())]
    return printable(
        f"{model} {', '.join([*named, *traffic])} (generation {moved['generation']}), as "
        f"{moved['who']} asked{ended_text(moved)}"
    )


def move_text(request: Mapping[str, Any]) -> str:
    """Describes the move of a request, with all that an approver has to know of it.

    Raises:
        KeyError, TypeError: the document is none of a request.
    """
    move = request["move"]
    act, alias, target = move["act"], move["alias"], request.get("target")
    text = f"{act} {alias}"
    if act == "promote":
        text = f"{alias} → {move['version']}"
    elif rollout := move.get("rollout"):
        text = f"{act} of {rollout['version']}: {_rollout_text(rollout)}"
    elif shadow := move.get("shadow"):
        text = f"{act} of {shadow['version']}: {share_text(shadow['sample'])}"
    elif split := move.get("split"):
        arms = ", ".join(f"{arm['version']}={share_text(arm['share'])}" for arm in split["arms"])
        text = f"{act} '{split['name']}': {arms}"
    elif target is not None:
        text = f"{text} → {target}"
    started = move.get("rollout") or move.get("shadow") or move.get("split") or {}
    breaking = move.get("allow_breaking") or started.get("allow_breaking")
    ends = request.get("ends") or ()
    parts = [text, *(["breaking allowed"] if breaking else [])]
    parts += ["if it names no version yet"] if move.get("first") else []
    return ", ".join([*parts, *([f"ends {' and '.join(ends)}"] if ends else [])])


def _rollout_text(rollout: Mapping[str, Any]) -> str:
    """Describes steps, their duration, the risk, and the guards that are not the default ones."""
    parts = [
        *map(share_text, rollout["steps"]),
        f"every {duration_text(rollout['every_s'])}",
        f"risk {share_text(rollout['risk'])}",
    ]
    for name, limits in sorted(rollout["guards"].items()):
        fields = [] if limits is None else [f"{key} {value}" for key, value in limits.items()]
        parts.append(f"{name}: {' '.join(fields)}" if limits is not None else f"no {name}")
    return ", ".join(parts)
