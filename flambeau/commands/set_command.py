"""Verbs with `--set NAME=VALUE`: a name that is given as an option is told the right form."""

from abc import abstractmethod
from typing import Any

from flambeau.commands.options.verb_classes import Verb


class SetCommand(Verb):
    """A kind of them says which names there are.

    Attributes:
        what: such a name is, in words.
    """

    what: str

    @abstractmethod
    def name_of(self, option: str) -> str | None:
        """The name that `--set` takes; None if there is none.

        Args:
            option: without its dashes, `http_port` for `--http-port`.
        """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Adds to the error for an unknown option how that name is given."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # only that of an unknown option has one
            if isinstance(option, str) and (form := self._form(option, given)):
                words = f"No such option: {option}; it is {self.what}, given as {form}"
                error.message = words  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise

    def _form(self, option: str, arguments: list[str]) -> str:
        """`--set http_port=9000` for the option `--http-port`; empty if there is no such name."""
        try:
            name = self.name_of(option.removeprefix("--").replace("-", "_"))
        except ImportError:
            return ""
        if name is None:
            return ""
        for place, argument in enumerate(arguments):
            if argument.startswith(f"{option}="):
                return f"--set {name}={argument.partition('=')[2]}"
            if argument == option and place + 1 < len(arguments):
                return f"--set {name}={arguments[place + 1]}"
        return f"--set {name}=VALUE"


class SettingsCommand(SetCommand):
    """For `app.command(cls=...)`, of verbs that take settings of a server."""

    what = "a setting"

    def name_of(self, option: str) -> str | None:
        """The setting itself."""
        from services.standalone.config import ServerConfig

        return option if option in ServerConfig.model_fields else None


class RecipeCommand(SetCommand):
    """For `app.command(cls=...)`, of verbs that take keys of a recipe."""

    what = "a key of the recipe"

    def name_of(self, option: str) -> str | None:
        """`train.epochs` for `epochs`."""
        from training.recipe.keys import key_named

        return key_named(option)
