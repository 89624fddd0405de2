"""Formats rollouts, shadows and splits for the command line.

In: documents of `model_store.rollouts.status`, or pointers, from a store or a server. Out: lines.
"""

from collections.abc import Mapping
from typing import Any

from flambeau.commands.text.moves import time_text
from flambeau.commands.text.tables import columns
from model_store.rollouts.amounts import duration_text, share_text


def moved_line(model: str, moved: Mapping[str, Any]) -> str:
    """Describes a new generation in a line: what production names, and what runs now.

    Raises:
        KeyError, TypeError: the document is none of pointers.
    """
    traffic = moved.get("traffic") or {}
    parts = [f"production → {moved['aliases'].get('production')}"]
    if rollout := traffic.get("rollout"):
        share = share_text(rollout["steps"][rollout["step"]])
        parts.append(f"rollout of {rollout['candidate']} at {share}{_paused(rollout)}")
    if shadow := traffic.get("shadow"):
        parts.append(f"shadow of {shadow['candidate']} at {share_text(shadow['sample'])}")
    if split := traffic.get("split"):
        parts.append(f"split '{split['name']}' {_arms(split)}")
    return printable(f"{model} {', '.join(parts)} (generation {moved['generation']})")


def status_lines(document: Mapping[str, Any]) -> list[str]:
    """Describes a rollout and its verdict; or how the last one ended.

    Raises:
        KeyError, TypeError: the document is none of a status.
    """
    rollout = document["rollout"]
    if rollout is None:
        return [ended_line(document)]
    steps = " → ".join(
        f"[{share_text(one)}]" if place == rollout["step"] else share_text(one)
        for place, one in enumerate(rollout["steps"])
    )
    rows = [
        ["candidate", f"{rollout['candidate']}, beside {rollout['baseline']} in production"],
        ["steps", f"{steps}, every {duration_text(rollout['every_s'])}{_paused(rollout)}"],
        ["started", time_text(rollout["started"])],
        ["step since", time_text(rollout["step_began"])],
        ["next step", _next_step(rollout)],
        ["mirrored", share_text(rollout["mirrored"])],
    ]
    if rollout["sticky"]:
        rows.append(["sticky", rollout["sticky"]])
    lines = columns([[document["model"], "rollout"], *rows])
    return [printable(line) for line in [*lines, *_verdict_lines(document)]]


def ended_line(document: Mapping[str, Any]) -> str:
    """Describes how the last rollout ended.

    Raises:
        KeyError, TypeError: the document is none of a status.
    """
    last = document["last"]
    if last is None:
        return f"no version of {printable(document['model'])} is being rolled out"
    why = f": {last['why']}" if last["why"] else ""
    return printable(
        f"{document['model']}: {last['text']} at {time_text(last['when'])} by {last['who']}{why} "
        f"(production → {document['production']}, generation {last['generation']})"
    )


def _next_step(rollout: Mapping[str, Any]) -> str:
    if rollout["next_share"] is None:
        return "none: promote or abort it"
    following = share_text(rollout["next_share"])
    if rollout["next_share"] == 1:
        following += ", a promotion, once every guard is proven to be kept"
    if rollout["next_step_at"] is None:
        return f"{following}; paused"
    return f"{following}, not before {time_text(rollout['next_step_at'])}"


def _verdict_lines(document: Mapping[str, Any]) -> list[str]:
    verdict = document["verdict"]
    if verdict is None:
        return ["", document["note"]]
    lines = ["", f"verdict of {time_text(verdict['when'])}: {verdict['reason']}"]
    if verdict.get("next_why"):
        lines.append(f"next: {verdict['next_why']}")
    if verdict["more_requests"]:
        lines.append(f"about {verdict['more_requests']:,} more requests until a promotion")
    rows = [["GUARD", "STATE", "EVIDENCE"]]
    rows += [[one["guard"], one["state"], one["text"]] for one in verdict["findings"]]
    return [*lines, *(columns(rows) if len(rows) > 1 else [])]


def _paused(rollout: Mapping[str, Any]) -> str:
    return f", paused: {rollout['paused']}" if rollout["paused"] else ""


def _arms(split: Mapping[str, Any]) -> str:
    return " ".join(f"{arm['version']}={share_text(arm['share'])}" for arm in split["arms"])


def printable(text: str) -> str:
    """Replaces control characters, which callers may have sent, by question marks."""
    return "".join(c if c.isprintable() else "?" for c in text)
