"""Opens the connection of a command to a registry."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flambeau.commands.options.tls import chosen_tls
from flambeau.commands.options.token import read_token
from flambeau.commands.text.failures import NO_KEY

if TYPE_CHECKING:
    from flambeau.registry.connection import RegistryConnection


@contextlib.contextmanager
def registry_at(url: str, token_file: Path | None) -> Iterator["RegistryConnection"]:
    """Opens a connection for the block; its errors end the command with code 1.

    Raises:
        BadParameter: the token, or a file of TLS, cannot be used.
    """
    from flambeau.registry.connection import RegistryConnection
    from flambeau.registry.errors import RegistryError

    token = read_token(token_file)
    try:
        connection = RegistryConnection(url, token, chosen_tls())
        with contextlib.closing(connection):
            yield connection
    except RegistryError as error:
        hint = NO_KEY if error.status == 401 else ""
        typer.echo(f"error: {error}{hint}", err=True)
        raise typer.Exit(1) from error
