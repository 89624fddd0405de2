"""How every verb fails: one line on standard error and an exit code, never a traceback."""

import contextlib
from collections.abc import Iterator, Mapping

import typer

NO_KEY = "; give a key with --token-file FILE"
"""Behind the words of a server that knows no key of the caller's."""


@contextlib.contextmanager
def failing_with(exit_codes: Mapping[type[Exception], int]) -> Iterator[None]:
    """Turns the given exceptions into `error: …` and their exit code; others are our own bugs.

    Args:
        exit_codes: exit code by exception type; a subclass counts as its nearest listed parent.
    """
    try:
        yield
    except tuple(exit_codes) as error:
        advice = "" if getattr(error, "grpc_code", "") != "UNAUTHENTICATED" else NO_KEY
        typer.echo(f"error: {error}{advice}", err=True)
        known = next(parent for parent in type(error).__mro__ if parent in exit_codes)
        raise typer.Exit(exit_codes[known]) from error
