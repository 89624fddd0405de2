"""`flambeau split`: shares a model's requests among versions, to compare them (A/B)."""

from typing import Annotated, Any

import typer

from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.rollouts.amounts import arm
from flambeau.commands.rollouts.traffic_commands import Sticky, add_act, add_report, starting
from flambeau.commands.text.rollouts import split_lines

split_app = Verbs(no_args_is_help=True, help="Share requests among versions, to compare them.")


@starting(split_app, "split")
def start(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the split.")],
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION=SHARE...",
            help="Versions and their shares, 100% together; the others are compared with the "
            "first.",
        ),
    ],
    sticky: Sticky = "",
) -> dict[str, Any]:
    """Start a split of the requests that name no version, until you end it."""
    if "=" in name:
        given = " ".join([name, *arms])
        raise typer.BadParameter(
            f"'{name}' is a version with its share; give the split a name before it, as in "
            f"colours {given}",
            param_hint="NAME",
        )
    if len(arms) < 2:
        raise typer.BadParameter(
            f"a split compares two versions or more, and one is given: {arms[0]}",
            param_hint="VERSION=SHARE",
        )
    return {"name": name, "arms": [arm(text) for text in arms], "sticky": sticky}


add_act(
    split_app,
    "split",
    "end",
    "End the split: the version in production answers every request again.",
)
add_report(
    split_app,
    "split",
    "report",
    "Show requests, errors, latencies and outputs of each version, and the effects.",
    split_lines,
)
add_report(
    split_app,
    "split",
    "status",
    "Show the split that runs, or the last one: the same as report.",
    split_lines,
)
