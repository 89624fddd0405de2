"""`flambeau split`: shares a model's requests among versions, to compare them (A/B)."""

from typing import Annotated

import typer

from flambeau.commands.options.allow_breaking import AllowBreaking
from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import ModelName
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.options.token import TokenFile
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.rollouts.amounts import arm
from flambeau.commands.rollouts.place import (
    FAILURES,
    OfServer,
    Sticky,
    Why,
    act_at,
    print_moved,
    traffic_place,
)
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.rollouts import split_lines

split_app = Verbs(no_args_is_help=True, help="Share requests among versions, to compare them.")


@split_app.command()
@failing_with(FAILURES)
def start(
    model: ModelName,
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
    allow_breaking: AllowBreaking = False,
    why: Why = "",
    store: StoreUrl = DEFAULT_STORE,
    server: OfServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Start a split of the requests that name no version, until you end it."""
    if "=" in name:
        given = " ".join([name, *arms])
        raise typer.BadParameter(
            f"'{name}' is a version with its share; give the split a name before it, as in "
            f"{model} colours {given}",
            param_hint="NAME",
        )
    if len(arms) < 2:
        raise typer.BadParameter(
            f"a split compares two versions or more, and one is given: {arms[0]}",
            param_hint="VERSION=SHARE",
        )
    wanted = {
        "name": name,
        "arms": [arm(text) for text in arms],
        "sticky": sticky,
        "allow_breaking": allow_breaking,
        "why": why,
    }
    with traffic_place(store, server, token_file) as place:
        moved = place.start(model, "split", wanted)
    print_moved(place, model, moved, as_json)


@split_app.command()
@failing_with(FAILURES)
def end(
    model: ModelName,
    why: Why = "",
    store: StoreUrl = DEFAULT_STORE,
    server: OfServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """End the split: the version in production answers every request again."""
    with traffic_place(store, server, token_file) as place:
        act_at(place, model, "split end", why, as_json)


@split_app.command()
@failing_with(FAILURES)
def report(
    model: ModelName,
    store: StoreUrl = DEFAULT_STORE,
    server: OfServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show requests, errors, latencies and outputs of each version, and the effects."""
    with traffic_place(store, server, token_file) as place:
        document = place.show(model, "split")
    print_outcome("\n".join(split_lines(document)), document, as_json)
