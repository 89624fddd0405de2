"""Commands that rollouts, shadows and splits have in common: `start`, acts such as `stop`, reports.

In: the group of a kind, and what is its own. Out: its commands, with the options that all have.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from flambeau.commands.options.allow_breaking import AllowBreaking
from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import ModelName, ModelOrVersion, named_version
from flambeau.commands.options.registry import Why
from flambeau.commands.options.store import STORE_FAILURES
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.places.at_place import at_place, take_parameters
from flambeau.commands.places.model_place import ModelPlace
from flambeau.commands.remote.move_requests import tell_request
from flambeau.commands.text.rollouts import moved_line
from model_store.errors import InvalidRolloutError

ENDING = ("rollout abort", "rollout promote", "shadow stop", "split end")
"""Acts that end what runs."""
ENDS = ("promoted", "rolled back", "aborted", "ended")
"""Changes of the traffic that are an end."""
FAILURES: dict[type[Exception], int] = {**STORE_FAILURES, InvalidRolloutError: 2}
Sticky = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="Keep requests with one value of header:NAME or parameter:NAME on one version.",
    ),
]
Wanted = Callable[..., dict[str, Any]]


def starting(group: Verbs, kind: str) -> Callable[[Wanted], Wanted]:
    """Makes the command `start` of a kind from a function.

    Its parameters are options of the command, beside those of all; its docstring is the help. It
    returns the part of the request that is the kind's own.
    """

    def add(wanted: Wanted) -> Wanted:
        def start(
            place: ModelPlace,
            model: ModelName,
            allow_breaking: AllowBreaking = False,
            why: Why = "",
            as_json: AsJson = False,
            **own: Any,
        ) -> None:
            document = {**wanted(**own), "allow_breaking": allow_breaking, "why": why}
            if "version" in document:
                model, document["version"] = named_version(model, document["version"], place.find)
            _print_moved(place, model, place.start(model, kind, document), as_json)

        place, model, *common, _ = inspect.signature(start).parameters.values()
        own = inspect.signature(wanted).parameters
        if "version" in own:
            model = model.replace(annotation=ModelOrVersion)
        take_parameters(start, [place, model, *own.values(), *common])
        group.command(help=wanted.__doc__)(at_place(FAILURES)(start))
        return wanted

    return add


def add_act(group: Verbs, kind: str, act: str, about: str) -> None:
    """Adds a command that does an act.

    Args:
        group: the commands of the kind.
        kind: `rollout`, `shadow` or `split`.
        act: name of the command, and of the act.
        about: its help.
    """

    @group.command(act, help=about)
    @at_place(FAILURES)
    def command(
        place: ModelPlace, model: ModelName, why: Why = "", as_json: AsJson = False
    ) -> None:
        moved = place.act(model, f"{kind} {act}", why)
        _print_moved(place, model, moved, as_json, is_end=f"{kind} {act}" in ENDING)


def add_report(
    group: Verbs, kind: str, name: str, about: str, lines: Callable[[dict[str, Any]], list[str]]
) -> None:
    """Adds a command that prints the status document of a kind.

    Args:
        group: the commands of the kind.
        kind: as for `add_act`.
        name: name of the command.
        about: its help.
        lines: returns a document as text.
    """

    @group.command(name, help=about)
    @at_place(FAILURES)
    def command(place: ModelPlace, model: ModelName, as_json: AsJson = False) -> None:
        document = place.traffic(model, kind)
        print_outcome("\n".join(lines(document)), document, as_json)


def _print_moved(
    place: ModelPlace,
    model: str,
    moved: dict[str, Any],
    as_json: bool,
    *,
    is_end: bool = False,
) -> None:
    """Prints new pointers, or the request for them that waits for a second person.

    Args:
        place: where they were moved.
        model: name of the model.
        moved: the pointers, or the request.
        as_json: True for JSON.
        is_end: True if the act has ended a rollout, a shadow or a split, which is then named.
    """
    if tell_request(moved, place.url, as_json):
        return
    changes = place.traffic_changes(model, moved["generation"]) if is_end and not as_json else []
    ended = [text for act, text in changes if act in ENDS]
    print_outcome(moved_line(model, moved, ended), {"model": model, **moved}, as_json)
