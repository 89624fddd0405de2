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
    """Opens a connection for the block, with the token in a file; see `registry_with`."""
    with registry_with(url, read_token(token_file)) as connection:
        yield connection


@contextlib.contextmanager
def registry_with(
    url: str, token: str, hint_of_key: str = NO_KEY
) -> Iterator["RegistryConnection"]:
    """Opens a connection for the block; its errors end the command with code 1.

    Args:
        url: URL of the server.
        token: key or token; empty for none.
        hint_of_key: words behind the error of a missing or wrong key.

    Raises:
        BadParameter: the token, or a file of TLS, cannot be used.
    """
    from flambeau.registry.connection import RegistryConnection
    from flambeau.registry.errors import RegistryError

    try:
        connection = RegistryConnection(url, token, chosen_tls())
        with contextlib.closing(connection):
            yield connection
    except RegistryError as error:
        hint = hint_of_key if error.status == 401 else ""
        typer.echo(f"error: {error}{hint}", err=True)
        raise typer.Exit(1) from error
