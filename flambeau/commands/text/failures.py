"""Error reporting of commands: one line on standard error and an exit code, no traceback."""

import contextlib
from collections.abc import Iterator, Mapping

import typer

NO_KEY = "; give a key with --token-file FILE"
"""Hint after the message of a server that received no known key."""


@contextlib.contextmanager
def failing_with(exit_codes: Mapping[type[Exception], int]) -> Iterator[None]:
    """Converts the given exceptions to `error: …` and their exit code; others are bugs.

    Args:
        exit_codes: exit code by exception type; a subclass uses its nearest listed parent.
    """
    try:
        yield
    except tuple(exit_codes) as error:
        advice = "" if getattr(error, "grpc_code", "") != "UNAUTHENTICATED" else NO_KEY
        typer.echo(f"error: {error}{advice}", err=True)
        known = next(parent for parent in type(error).__mro__ if parent in exit_codes)
        raise typer.Exit(exit_codes[known]) from error
