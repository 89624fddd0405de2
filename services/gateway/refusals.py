"""Refusals that both edges share: naming an input, and unsupported extensions."""

import contextlib
from collections.abc import Iterable, Iterator

from services.errors import InvalidRequestError, UnsupportedError

UNSUPPORTED_PARAMETERS = frozenset({"shared_memory_region"})
"""Parameters that would change the meaning of the response and must not be ignored."""


@contextlib.contextmanager
def naming_input(name: str) -> Iterator[None]:
    """Turns a tensor's error into a refusal that names the input.

    NumPy's own refusals (too many dimensions, a size beyond memory) are ValueErrors too.
    """
    try:
        yield
    except ValueError as error:
        raise unreadable_input(name, error) from error


def unreadable_input(name: str, error: ValueError) -> InvalidRequestError:
    """Returns the error of an input that cannot be read."""
    return InvalidRequestError(f"input '{name}': {error}")


def refuse_unsupported(parameters: Iterable[str]) -> None:
    """Refuses parameters of extensions this server does not offer; others are ignored.

    Args:
        parameters: their names.

    Raises:
        UnsupportedError: the message names the parameter.
    """
    for name in parameters:
        if name in UNSUPPORTED_PARAMETERS:
            raise UnsupportedError(
                f"parameter '{name}' belongs to an extension this server does not support; "
                "see 'extensions' in GET /v2"
            )
