"""The option `--token-file`: the credential of the user of the command line."""

from pathlib import Path
from typing import Annotated

import typer

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
