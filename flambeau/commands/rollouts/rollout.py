"""`flambeau rollout`: sends a growing share of a model's requests to a new version.

In: a store, or the registry of a server. Out: the rollout's state; its steps are the servers' work.
"""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_json, print_outcome
from flambeau.commands.options.model import ModelName, parse_version
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.places.at_place import at_place
from flambeau.commands.places.model_place import ModelPlace
from flambeau.commands.rollouts.amounts import changed_guards, duration, share, shares
from flambeau.commands.rollouts.traffic_commands import FAILURES, Sticky, add_act, starting
from flambeau.commands.text.rollouts import (
    ended_line,
    report_lines,
    split_lines,
    status_lines,
)

rollout_app = Verbs(
    no_args_is_help=True, help="Roll a version out step by step, judged by its traffic."
)
WATCH_EVERY_S = 2.0
"""Interval of `--watch`: servers write evidence every 2 s."""


class StillRunningError(Exception):
    """A rollout has not ended within the time limit of `--watch`."""


Candidate = Annotated[
    int | None,
    typer.Argument(
        metavar="[VERSION]",
        parser=parse_version,
        help="The new version; required, unless MODEL is MODEL/VERSION.",
    ),
]

Steps = Annotated[
    str,
    typer.Option(
        metavar="SHARES",
        help="Its shares of the requests, ascending; 100% is the promotion, which takes evidence. "
        "Without 100%, the last step lasts until you promote or abort.",
    ),
]
Every = Annotated[
    str, typer.Option(metavar="DURATION", help="Shortest time of a step, such as 30s or 5m.")
]
Mirror = Annotated[
    str,
    typer.Option(
        metavar="SHARE",
        help="Share of the other requests that the new version answers too, unseen, to compare "
        "its answers.",
    ),
]
Risk = Annotated[
    str,
    typer.Option(
        metavar="SHARE", help="Probability that a version within all limits is rolled back."
    ),
]
Guards = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GUARD.FIELD=VALUE",
        help="A limit, such as disagreement.limit=2% or latency.ratio=1.5, or latency=off; repeat "
        "it for each.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="S",
        help="Time limit of --watch in seconds; the exit code is 1 if the rollout still runs.",
    ),
]


@starting(rollout_app, "rollout")
def start(
    version: Candidate = None,
    steps: Steps = "1%,10%,50%,100%",
    every: Every = "5m",
    sticky: Sticky = "",
    mirror: Mirror = "10%",
    risk: Risk = "1%",
    guard: Guards = None,
) -> dict[str, Any]:
    """Start a rollout of VERSION beside the version in production.

    Servers go on by themselves, and roll back once a guard is broken: see rollout status.
    """
    return {
        "version": version,
        "steps": shares(steps, "--steps"),
        "every_s": duration(every, "--every"),
        "sticky": sticky,
        "mirrored": share(mirror, "--mirror"),
        "risk": share(risk, "--risk"),
        "guards": changed_guards(guard or []),
    }


for act, about in (
    ("pause", "Keep the rollout at its step; a broken guard still rolls it back."),
    ("resume", "Let the paused rollout go on; its step begins again."),
    ("abort", "End the rollout: the version in production answers every request again."),
    (
        "promote",
        "Point production at the new version now, whatever its evidence, and end the rollout.",
    ),
):
    add_act(rollout_app, "rollout", act, about)


@rollout_app.command()
@at_place({**FAILURES, StillRunningError: 1})
def status(
    place: ModelPlace,
    model: ModelName,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it until it ends; the exit code is 0 if it was promoted, otherwise 1.",
        ),
    ] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Show the rollout, the evidence about each guard, and the traffic that is missing.

    If none runs, show how the last one ended. Without traffic, a rollout does not end by itself.
    """
    if timeout is not None and not watch:
        raise typer.BadParameter("--timeout limits --watch; give both")
    if watch:
        _watch(place, model, as_json, timeout)
        return
    document = place.traffic(model, "rollout")
    print_outcome("\n".join(status_lines(document)), document, as_json)


@rollout_app.command()
@at_place(FAILURES)
def report(place: ModelPlace, model: ModelName, as_json: AsJson = False) -> None:
    """Show the figures of the rollout and of the split with intervals, or of the last ones."""
    rollout, split = place.traffic(model, "rollout"), place.traffic(model, "split")
    lines = [*report_lines(rollout), "", *split_lines(split)]
    print_outcome("\n".join(lines), {"rollout": rollout, "split": split}, as_json)


def _watch(place: ModelPlace, model: str, as_json: bool, timeout_s: float | None) -> None:
    """Shows the rollout until it has ended; on a terminal in place, otherwise what changes.

    Raises:
        StillRunningError: it has not ended within the time limit.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    document: dict[str, Any] = {}
    if as_json or not console.is_terminal:
        shown: Any = None
        for document in _documents(place, model, timeout_s):
            if document["rollout"] is not None and (now := _changing(document)) != shown:
                shown = now
                _print(document, as_json)
    else:
        with Live(console=console, auto_refresh=False) as live:
            for document in _documents(place, model, timeout_s):
                if document["rollout"] is not None:
                    live.update(Text("\n".join(status_lines(document))), refresh=True)
    _print(document, as_json)
    last = document["last"]
    if last is None or last["outcome"] != "promoted":
        raise typer.Exit(1)


def _documents(place: ModelPlace, model: str, timeout_s: float | None) -> Iterator[dict[str, Any]]:
    """Yields the status every `WATCH_EVERY_S`; the last one is of a rollout that has ended.

    Raises:
        StillRunningError: it has not ended after `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        document = place.traffic(model, "rollout")
        yield document
        rollout = document["rollout"]
        if rollout is None:
            return
        left_s = WATCH_EVERY_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise StillRunningError(
                f"the rollout of version {rollout['candidate']} has not ended within "
                f"{timeout_s:g} s, and goes on; watch it again, give a longer --timeout, or abort "
                "it (flambeau rollout abort)"
            )
        time.sleep(min(left_s, WATCH_EVERY_S))


def _print(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document, in_a_line=True)
    elif document["rollout"] is None:
        typer.echo(ended_line(document))
    else:
        typer.echo("\n".join(status_lines(document)))


def _changing(document: dict[str, Any]) -> Any:
    """Returns the parts of a status whose changes are worth a line."""
    verdict = document["verdict"] or {}
    rollout = document["rollout"]
    states = [(one["guard"], one["state"]) for one in verdict.get("findings", ())]
    return rollout["id"], rollout["step"], rollout["paused"], verdict.get("decision"), states
