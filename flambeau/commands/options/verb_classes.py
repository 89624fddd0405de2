"""Classes of commands and groups: help of flags, suggestions, a store or a server."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class Verb(TyperCommand):
    """A command whose help shows flags without a value, and that is of a store or of a server."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns its options and arguments."""
        return _without_values(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Runs the command.

        Raises:
            BadParameter: it was given a store, and a server in its place.
        """
        for option in self.params:
            is_in_place = "--server" in option.opts and option.default == ""
            if is_in_place and ctx.params[option.name] and _is_given(ctx, "store"):
                raise typer.BadParameter(
                    f"a server has a store of its own; give --store or {option.opts[0]}, not both",
                    param_hint="--store",
                )
        return super().invoke(ctx)


class VerbGroup(TyperGroup):
    """A group of commands, which suggests the subgroup of an unknown command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns its options and arguments."""
        return _without_values(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Extends the error for an unknown command by the subgroups that have it."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            groups = [
                name
                for name, group in self.commands.items()
                if args[0] in getattr(group, "commands", {})
            ]
            if groups and hasattr(error, "message"):
                found = " or ".join(f"'{ctx.command_path} {name} {args[0]}'" for name in groups)
                error.message = f"No such command '{args[0]}'. Did you mean {found}?"
            raise


class Verbs(typer.Typer):
    """A Typer with these classes."""

    def __init__(self, *, cls: type[TyperGroup] = VerbGroup, **settings: Any) -> None:
        super().__init__(cls=cls, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[Function], Function]:
        """Same as in `typer.Typer`."""
        return super().command(name, cls=cls or Verb, **settings)


def _is_given(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _without_values(parameters: list[Any]) -> list[Any]:
    """Removes the `<bool>` that Typer shows after every flag, since flags take no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
