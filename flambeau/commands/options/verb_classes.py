"""Classes of commands and groups: help of flags, and suggestions for unknown commands."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class Verb(TyperCommand):
    """A command whose help shows flags without a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns its options and arguments."""
        return _without_values(super().get_params(ctx))


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


def _without_values(parameters: list[Any]) -> list[Any]:
    """Removes the `<bool>` that Typer shows after every flag, since flags take no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
