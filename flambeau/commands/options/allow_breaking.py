"""The option `--allow-breaking` of commands that move a version towards production."""

from typing import Annotated

import typer

AllowBreaking = Annotated[
    bool,
    typer.Option(
        "--allow-breaking",
        help="Allow a version whose signature breaks callers of the one in production.",
    ),
]
