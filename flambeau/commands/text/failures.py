"""Error reporting of commands: one line on standard error and an exit code, no traceback."""

import contextlib
from collections.abc import Iterator, Mapping

import typer

NO_KEY = "; give a key with --token-file FILE"
"""Hint after the message of a server that received no known key."""
OTHER_SERVER = "; set the address with --server HOST:PORT"
"""Hint after the message of an address where no server answers."""


@contextlib.contextmanager
def failing_with(exit_codes: Mapping[type[Exception], int]) -> Iterator[None]:
    """Converts the given exceptions to `error: …` and their exit code; others are bugs.

    Args:
        exit_codes: exit code by exception type; a subclass uses its nearest listed parent.
    """
    try:
        yield
    except tuple(exit_codes) as error:
        typer.echo(f"error: {error}{_advice(error)}", err=True)
        known = next(parent for parent in type(error).__mro__ if parent in exit_codes)
        raise typer.Exit(exit_codes[known]) from error


def _advice(error: Exception) -> str:
    """Returns the option that mends an error of a server; empty if none does."""
    code = getattr(error, "grpc_code", "")
    if code == "UNAUTHENTICATED":
        return NO_KEY
    is_away = code == "UNAVAILABLE" and str(error).startswith("failed to connect")
    return OTHER_SERVER if is_away else ""
