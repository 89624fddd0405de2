"""Commands of which a function has the act, and options of the command line the place.

In: a function of a `ModelPlace`. Out: a command with `--store`, `--server` and `--token-file`.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flambeau.commands.options.registry import ServerUrl
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.options.token import TokenFile
from flambeau.commands.places.model_place import model_place
from flambeau.commands.text.failures import failing_with

Command = Callable[..., None]


def at_place(exit_codes: Mapping[type[Exception], int]) -> Callable[[Command], Command]:
    """Makes a command from a function, which is called with the place that the options name.

    The function's parameters are the place, and those of the command. `--json`, the last one,
    stays behind the options of the place.

    Args:
        exit_codes: exit code by exception type, as for `failing_with`.
    """

    def made(function: Command) -> Command:
        @failing_with(exit_codes)
        def command(
            store: StoreUrl = DEFAULT_STORE,
            server: ServerUrl = "",
            token_file: TokenFile = None,
            **own: Any,
        ) -> None:
            with model_place(store, server, token_file) as place:
                function(place, **own)

        *of_place, _ = inspect.signature(command).parameters.values()
        _, *own, as_json = inspect.signature(function).parameters.values()
        functools.update_wrapper(command, function, ("__module__", "__name__", "__doc__"))
        take_parameters(command, [*own, *of_place, as_json])
        return command

    return made


def take_parameters(command: Command, parameters: Iterable[inspect.Parameter]) -> None:
    """Declares parameters of a command that it takes as `**own`."""
    declared = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__annotations__ = {one.name: one.annotation for one in declared}
    command.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
