"""A verb with `--set KEY=VALUE`: a recipe's key given as an option is told the right form."""

from typing import Any

from flambeau.commands.verb_classes import Verb


class RecipeCommand(Verb):
    """For `app.command(cls=...)`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Adds to the error for an unknown option how the key of that name is given."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # only that of an unknown option has one
            if isinstance(option, str) and (form := _key_form(option, given)):
                words = f"No such option: {option}; it is a key of the recipe, given as {form}"
                error.message = words  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise


def _key_form(option: str, arguments: list[str]) -> str:
    """`--set train.epochs=3` for the option `--epochs`; empty if the recipe has no such key."""
    try:
        from training.recipe_keys import key_named
    except ImportError:
        return ""
    key = key_named(option.removeprefix("--").replace("-", "_"))
    if key is None:
        return ""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return f"--set {key}={argument.partition('=')[2]}"
        if argument == option and place + 1 < len(arguments):
            return f"--set {key}={arguments[place + 1]}"
    return f"--set {key}=VALUE"
