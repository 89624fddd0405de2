"""Formats rollouts, shadows and splits for the command line.

In: documents of `model_store.rollouts.status`, or pointers, from a store or a server. Out: lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flambeau.commands.text.moves import evidence_lines, printable, time_text
from flambeau.commands.text.tables import UNKNOWN, columns, latency_text
from model_store.rollouts.amounts import duration_text, share_text


def moved_line(model: str, moved: Mapping[str, Any], ended: Sequence[str] = ()) -> str:
    """Describes a new generation in a line: what ended, what production names, what runs now.

    Args:
        model: name of the model.
        moved: the pointers.
        ended: what of the traffic has ended, in words.

    Raises:
        KeyError, TypeError: the document is none of pointers.
    """
    traffic = moved.get("traffic") or {}
    parts = [*ended, f"production → {moved['aliases'].get('production')}"]
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
    rows += _spread_rows(rollout)
    lines = columns([[document["model"], "rollout"], *rows])
    return [printable(line) for line in [*lines, *_verdict_lines(document)]]


def report_lines(document: Mapping[str, Any]) -> list[str]:
    """Describes a rollout and its evidence, or how the last one ended and by what evidence.

    Raises:
        KeyError, TypeError: the document is none of a status.
    """
    last = document["last"]
    return [*status_lines(document), *(evidence_lines(last["evidence"]) if last else [])]


def ended_line(document: Mapping[str, Any]) -> str:
    """Describes how the last rollout ended.

    Raises:
        KeyError, TypeError: the document is none of a status.
    """
    last = document["last"]
    if last is None:
        return f"no version of {printable(document['model'])} is being rolled out"
    why = f": {last['why']}" if last["why"] else ""
    then = f"generation {last['generation']}"
    if "production" in last:  # older servers do not say it
        then = f"production → {last['production']}, {then}"
    return printable(
        f"{document['model']}: {last['text']} at {time_text(last['when'])} by {last['who']}{why} "
        f"({then})"
    )


def shadow_lines(document: Mapping[str, Any]) -> list[str]:
    """Describes a shadow and its figures, of the last one if none runs.

    Raises:
        KeyError, TypeError: the document is none of a shadow.
    """
    shadow, last, figures = document["shadow"], document["last"], document["figures"]
    if shadow is None and last is None:
        return [f"no version of {printable(document['model'])} is a shadow"]
    shown = shadow or last
    beside = f", beside {document['production']} in production" if shadow else ""
    rows = [
        [document["model"], "shadow" if shadow else f"shadow, ended {time_text(last['when'])}"],
        ["candidate", f"{shown['candidate']}{beside}"],
        ["sample", share_text(shown["sample"])],
        ["started", time_text(shown["started"])],
        *_spread_rows(shown),
    ]
    if figures is not None:
        rows += _shadow_rows(figures)
    lines = [*columns(rows), *([document["note"]] if document["note"] else [])]
    if figures is not None and figures["worst"]:
        lines += ["", *columns(_pair_rows(figures["worst"]))]
    return [printable(line) for line in lines]


def _spread_rows(shown: Mapping[str, Any]) -> list[list[str]]:
    spreads = shown.get("spreads")  # unknown to an older server
    if not spreads:
        return []
    return [["spread", ", ".join(f"{name} {spread:.4g}" for name, spread in spreads.items())]]


def _shadow_rows(figures: Mapping[str, Any]) -> list[list[str]]:
    latency = figures["latency_s"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in figures["dropped"].items())
    return [
        ["pairs", f"{figures['pairs']:,}: {figures['failed']:,} failed, {figures['nan']:,} NaN"],
        ["agreement", _percent(figures["agreement"])],
        ["largest difference", f"{figures['difference']:.4g}"],
        *(
            [
                name,
                f"candidate {_ms(latency['candidate'][name])}, live {_ms(latency['live'][name])}",
            ]
            for name in latency["live"]
        ),
        ["not mirrored", dropped or "none"],
    ]


def _pair_rows(pairs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["REQUEST", "DISAGREEMENT", "DIFFERENCE", "ERROR"]]
    for one in pairs:
        figures = [_percent(one["disagreement"]), f"{one['difference']:.4g}"]
        rows.append([one["request_id"] or UNKNOWN, *figures, one["error"] or UNKNOWN])
    return rows


def split_lines(document: Mapping[str, Any]) -> list[str]:
    """Describes a split, and its arms beside the first one; the last split if none runs.

    Raises:
        KeyError, TypeError: the document is none of a split.
    """
    split, last = document["split"], document["last"]
    if split is None and last is None:
        return [f"{printable(document['model'])} has no split"]
    shown = split or last
    over = "" if split else f", ended {time_text(last['when'])}"
    title = (
        f"{document['model']}: split '{shown['name']}' since {time_text(shown['started'])}{over}"
    )
    rows = [["VERSION", "SHARE", "REQUESTS", "ERRORS", "P50", "P99"]]
    for arm in document["arms"]:
        own = arm["figures"]
        requests = UNKNOWN if own["requests"] is None else f"{own['requests']:,.0f}"
        cells = [requests, _percent(own["error_rate"]), _ms(own["p50_s"]), _ms(own["p99_s"])]
        rows.append([str(arm["version"]), share_text(arm["share"]), *cells])
    lines = [title, *columns(rows)]
    first = shown["arms"][0]["version"]
    for arm in document["arms"][1:]:
        lines += [f"{arm['version']} beside {first}: {text}" for text in arm["text"] if text]
    return [printable(line) for line in [*lines, *filter(None, [document["note"]])]]


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.3g}%"


def _ms(value: float | None) -> str:
    return latency_text(None if value is None else 1000 * value)


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
        is_promoted = document["rollout"]["steps"][-1] == 1
        end = "a promotion" if is_promoted else "every guard is proven to be kept"
        more = f"{verdict['more_requests']:,} more requests of both versions"
        lines.append(f"about {more} until {end}")
    rows = [["GUARD", "STATE", "EVIDENCE"]]
    rows += [[one["guard"], one["state"], one["text"]] for one in verdict["findings"]]
    return [*lines, *(columns(rows) if len(rows) > 1 else [])]


def _paused(rollout: Mapping[str, Any]) -> str:
    return f", paused: {rollout['paused']}" if rollout["paused"] else ""


def _arms(split: Mapping[str, Any]) -> str:
    return " ".join(f"{arm['version']}={share_text(arm['share'])}" for arm in split["arms"])
