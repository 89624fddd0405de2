"""A verb with `--set NAME=VALUE`: a setting that is given as an option is told the right form."""

from typing import Any

from flambeau.commands.verb_classes import Verb


class SettingsCommand(Verb):
    """For `app.command(cls=...)`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Adds to the error for an unknown option how the setting of that name is given."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # only that of an unknown option has one
            if isinstance(option, str) and (form := _setting_form(option, given)):
                error.message = f"No such option: {option}; it is a setting, given as {form}"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise


def _setting_form(option: str, arguments: list[str]) -> str:
    """`--set http_port=9000` for the option `--http-port`; empty if that is no setting."""
    name = option.removeprefix("--").replace("-", "_")
    try:
        from services.standalone.config import ServerConfig
    except ImportError:
        return ""
    if name not in ServerConfig.model_fields:
        return ""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return f"--set {name}={argument.partition('=')[2]}"
        if argument == option and place + 1 < len(arguments):
            return f"--set {name}={arguments[place + 1]}"
    return f"--set {name}=VALUE"
