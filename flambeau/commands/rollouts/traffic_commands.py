"""Commands that rollouts, shadows and splits have in common: `start`, acts such as `stop`, reports.

In: the group of a kind, and what is its own. Out: its commands, with the options that all have.
"""

import inspect
from collections.abc import Callable
from typing import Any

from flambeau.commands.options.allow_breaking import AllowBreaking
from flambeau.commands.options.as_json import AsJson, print_outcome
from flambeau.commands.options.model import ModelName, ModelOrVersion
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.options.token import TokenFile
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.rollouts.place import (
    ENDING,
    FAILURES,
    OfServer,
    Why,
    candidate_of,
    print_moved,
    traffic_place,
)
from flambeau.commands.text.failures import failing_with

Wanted = Callable[..., dict[str, Any]]


def starting(group: Verbs, kind: str) -> Callable[[Wanted], Wanted]:
    """Makes the command `start` of a kind from a function.

    Its parameters are options of the command, beside those of all; its docstring is the help. It
    returns the part of the request that is the kind's own.
    """

    def add(wanted: Wanted) -> Wanted:
        @failing_with(FAILURES)
        def start(
            model: ModelName,
            allow_breaking: AllowBreaking = False,
            why: Why = "",
            store: StoreUrl = DEFAULT_STORE,
            server: OfServer = "",
            token_file: TokenFile = None,
            as_json: AsJson = False,
            **own: Any,
        ) -> None:
            document = {**wanted(**own), "allow_breaking": allow_breaking, "why": why}
            with traffic_place(store, server, token_file) as place:
                if "version" in document:
                    model, document["version"] = candidate_of(place, model, document["version"])
                moved = place.start(model, kind, document)
            print_moved(place, model, moved, as_json)

        _take_parameters(start, wanted)
        group.command(help=wanted.__doc__)(start)
        return wanted

    return add


def _take_parameters(command: Callable[..., None], wanted: Wanted) -> None:
    """Puts the parameters of a function behind the first one of a command, in place of `**own`."""
    first, *rest = inspect.signature(command).parameters.values()
    if "version" in inspect.signature(wanted).parameters:
        first = first.replace(annotation=ModelOrVersion)
    parameters = [first, *inspect.signature(wanted).parameters.values(), *rest[:-1]]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    signature = inspect.Signature(
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    )
    command.__signature__ = signature  # type: ignore[attr-defined]


def add_act(group: Verbs, kind: str, act: str, about: str) -> None:
    """Adds a command that does an act.

    Args:
        group: the commands of the kind.
        kind: `rollout`, `shadow` or `split`.
        act: name of the command, and of the act.
        about: its help.
    """

    @group.command(act, help=about)
    @failing_with(FAILURES)
    def command(
        model: ModelName,
        why: Why = "",
        store: StoreUrl = DEFAULT_STORE,
        server: OfServer = "",
        token_file: TokenFile = None,
        as_json: AsJson = False,
    ) -> None:
        with traffic_place(store, server, token_file) as place:
            moved = place.act(model, f"{kind} {act}", why)
            print_moved(place, model, moved, as_json, is_end=f"{kind} {act}" in ENDING)


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
    @failing_with(FAILURES)
    def command(
        model: ModelName,
        store: StoreUrl = DEFAULT_STORE,
        server: OfServer = "",
        token_file: TokenFile = None,
        as_json: AsJson = False,
    ) -> None:
        with traffic_place(store, server, token_file) as place:
            document = place.show(model, kind)
        print_outcome("\n".join(lines(document)), document, as_json)
