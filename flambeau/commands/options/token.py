"""The credential of the user of the command line: `--token-file`, or the environment."""

import os
from pathlib import Path
from typing import Annotated

import typer

KEY_VARIABLE = "FLAMBEAU_KEY"
"""Environment variable of the credential in example requests, and for servers that recipes name."""
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with your API key or token, if the server requires one.",
        exists=True,
        dir_okay=False,
    ),
]


def read_token(file: Path | None) -> str:
    """Reads the token in a file, without the end of line; empty for no file.

    Raises:
        BadParameter: the content is not a valid token.

    The option names a file, because process arguments are visible to every user of the machine.
    """
    if file is None:
        return ""
    from flambeau.channel import bearer

    try:
        token = file.read_text("utf-8").strip()
        bearer(token)
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--token-file") from error
    return token


def key_of_environment() -> str:
    """Returns the key or token in `FLAMBEAU_KEY`; empty if it is not set.

    Raises:
        BadParameter: the content is not a valid token.
    """
    from flambeau.channel import bearer

    token = os.environ.get(KEY_VARIABLE, "").strip()
    if token:
        try:
            bearer(token)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=KEY_VARIABLE) from error
    return token
