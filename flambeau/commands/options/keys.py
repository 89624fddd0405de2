"""The `--keys` option of every command that has one."""

from typing import Annotated

import typer

KeysFolder = Annotated[
    str,
    typer.Option(
        "--keys", metavar="DIR", help="Folder of the keys; ~/.config/flambeau/keys unless given."
    ),
]
