"""`flambeau shadow`: repeats a share of a model's requests at another version, for no caller."""

from typing import Annotated, Any

import typer

from flambeau.commands.options.allow_breaking import AllowBreaking
from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import ModelName, ModelOrVersion
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.options.token import TokenFile
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.rollouts.amounts import share
from flambeau.commands.rollouts.place import (
    FAILURES,
    OfServer,
    Why,
    act_at,
    candidate_of,
    print_moved,
    traffic_place,
)
from flambeau.commands.rollouts.rollout import Candidate
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.rollouts import shadow_lines

shadow_app = Verbs(
    no_args_is_help=True, help="Compare a version's answers with the live ones, unseen by callers."
)


@shadow_app.command()
@failing_with(FAILURES)
def start(
    model: ModelOrVersion,
    version: Candidate = None,
    sample: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of the requests that it answers too.")
    ] = "10%",
    keep: Annotated[
        int, typer.Option(min=0, max=100, help="Pairs of the most different answers to keep.")
    ] = 20,
    allow_breaking: AllowBreaking = False,
    why: Why = "",
    store: StoreUrl = DEFAULT_STORE,
    server: OfServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Start to repeat requests of the version in production at VERSION, where a device is idle."""
    wanted: dict[str, Any] = {
        "sample": share(sample, "--sample"),
        "keep": keep,
        "allow_breaking": allow_breaking,
        "why": why,
    }
    with traffic_place(store, server, token_file) as place:
        name, wanted["version"] = candidate_of(place, model, version)
        moved = place.start(name, "shadow", wanted)
    print_moved(place, name, moved, as_json)


@shadow_app.command()
@failing_with(FAILURES)
def stop(
    model: ModelName,
    why: Why = "",
    store: StoreUrl = DEFAULT_STORE,
    server: OfServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """End the shadow; its figures stay in the store."""
    with traffic_place(store, server, token_file) as place:
        act_at(place, model, "shadow stop", why, as_json)


@shadow_app.command()
@failing_with(FAILURES)
def status(
    model: ModelName,
    store: StoreUrl = DEFAULT_STORE,
    server: OfServer = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the shadow and its figures: agreement, differences, latencies, the worst pairs."""
    with traffic_place(store, server, token_file) as place:
        document = place.show(model, "shadow")
    print_outcome("\n".join(shadow_lines(document)), document, as_json)
