"""The report of a replay as text, the same on a terminal and in `report.md`."""

from typing import Any

from flambeau.commands.text.tables import columns
from flambeau.replay.records import Result
from flambeau.replay.tally import Tally

_FENCE = "```"


def report_lines(facts: dict[str, Any], tally: Tally, shown: int) -> list[str]:
    """Returns the lines of a report.

    Args:
        facts: settings and state of the replay.
        tally: its results.
        shown: number of requests whose differences are shown.
    """
    lines = columns([(name, _text(value)) for name, value in facts.items()])
    lines += ["", *_counts(tally)]
    if status := tally.only_refusal:
        lines += [
            "",
            f"WARNING: every answer of both servers has status {status}, which proves nothing: "
            "check tokens, paths and models",
        ]
    latencies = tally.latencies()
    if latencies:
        names = list(latencies["old"])
        rows = [("LATENCY IN MS", *(name.upper() for name in names))]
        rows += [
            (side, *(f"{figures[name]:.2f}" for name in names))
            for side, figures in latencies.items()
        ]
        lines += ["", *columns(rows)]
    kept = tally.kept
    if kept:
        lines += [
            "",
            f"differences of {min(shown, len(kept))} of {_with_differences(tally)} requests",
        ]
    for result in kept[:shown]:
        lines += ["", *_result_lines(result)]
    return lines


def page(lines: list[str]) -> str:
    """Returns Markdown with the lines of a report."""
    quoted = "\n".join(lines).replace(_FENCE, "'''")  # bodies of answers cannot end the block
    return f"# Replay report\n\n{_FENCE}text\n{quoted}\n{_FENCE}\n"


def _counts(tally: Tally) -> list[str]:
    rows = [("REQUESTS", "")]
    rows += [(outcome, str(count)) for outcome, count in sorted(tally.outcomes.items())]
    rows += [(f"  by {rule}", str(count)) for rule, count in sorted(tally.by_rules.items())]
    rows += [(f"  with statuses {both}", str(n)) for both, n in sorted(tally.statuses.items())]
    rows += [(f"  {kind} differs", str(n)) for kind, n in sorted(tally.kinds.items())]
    rows.append(("largest difference", f"{tally.largest:.3g}"))
    return columns(rows)


def _with_differences(tally: Tally) -> int:
    return tally.outcomes["different"] + tally.outcomes["not compared"]


def _result_lines(result: Result) -> list[str]:
    lines = [f"{_printable(result.name)} (statuses {result.old_status}, {result.new_status})"]
    rows = [
        (x.kind, _printable(x.place), _printable(x.old), "->", _printable(x.new))
        for x in result.differences
    ]
    lines += columns(rows, "  ")
    more = result.count - len(result.differences)
    return lines + ([f"  and {more} more"] if more > 0 else [])


def _printable(text: str) -> str:
    """Returns text without what would change a terminal's state or the report's lines."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _text(value: object) -> str:
    return _printable(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
