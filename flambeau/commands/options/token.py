"""The option `--token-file`: the credential of whoever uses the command line."""

from pathlib import Path
from typing import Annotated

import typer

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with your API key or token, where the server asks for one.",
        exists=True,
        dir_okay=False,
    ),
]


def read_token(file: Path | None) -> str:
    """The token in a file, without the line's end; empty for no file.

    Raises:
        BadParameter: it is no token.

    A file, because the arguments of a process are for everybody on its machine to see.
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
