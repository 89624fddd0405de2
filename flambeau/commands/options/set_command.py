"""Commands with `--set NAME=VALUE`: their error for an unknown option suggests that form."""

from abc import abstractmethod
from typing import Any

from flambeau.commands.options.verb_classes import Verb


class SetCommand(Verb):
    """Base class; each subclass knows the names that `--set` accepts.

    Attributes:
        what: description of such a name.
    """

    what: str

    @abstractmethod
    def name_of(self, option: str) -> str | None:
        """Returns the name that `--set` accepts, or None.

        Args:
            option: option without its dashes, `http_port` for `--http-port`.
        """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Extends the error for an unknown option by its `--set` form."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # only unknown-option errors have one
            if isinstance(option, str) and (form := self._form(option, given)):
                words = f"No such option: {option}; it is {self.what}, given as {form}"
                error.message = words  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise

    def _form(self, option: str, arguments: list[str]) -> str:
        """Returns `--set http_port=9000` for the option `--http-port`; "" if it is not a name."""
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
    """Class of commands that accept server settings, for `app.command(cls=...)`."""

    what = "a setting"

    def name_of(self, option: str) -> str | None:
        """Returns the setting itself."""
        from services.standalone.config import ServerConfig

        return option if option in ServerConfig.model_fields else None


class RecipeCommand(SetCommand):
    """Class of commands that accept recipe keys, for `app.command(cls=...)`."""

    what = "a key of the recipe"

    def name_of(self, option: str) -> str | None:
        """Returns `train.epochs` for `epochs`."""
        from training.recipe.keys import key_named

        return key_named(option)
