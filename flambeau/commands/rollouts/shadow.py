"""`flambeau shadow`: repeats a share of a model's requests at another version, for no caller."""

from typing import Annotated, Any

import typer

from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.rollouts.amounts import share
from flambeau.commands.rollouts.rollout import Candidate
from flambeau.commands.rollouts.traffic_commands import add_act, add_report, starting
from flambeau.commands.text.rollouts import shadow_lines

shadow_app = Verbs(
    no_args_is_help=True, help="Compare a version's answers with the live ones, unseen by callers."
)


@starting(shadow_app, "shadow")
def start(
    version: Candidate = None,
    sample: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of the requests that it answers too.")
    ] = "10%",
    keep: Annotated[
        int, typer.Option(min=0, max=100, help="Pairs of the most different answers to keep.")
    ] = 20,
) -> dict[str, Any]:
    """Start to repeat requests of the version in production at VERSION, where a device is idle."""
    return {"version": version, "sample": share(sample, "--sample"), "keep": keep}


add_act(shadow_app, "shadow", "stop", "End the shadow; its figures stay in the store.")
add_report(
    shadow_app,
    "shadow",
    "status",
    "Show the shadow and its figures: agreement, differences, latencies, the worst pairs.",
    shadow_lines,
)
