"""Refusals that both edges share: naming an input, and shared memory where it is not taken."""

import contextlib
from collections.abc import Container, Iterator

from services.errors import InvalidRequestError, UnsupportedError

REGION = "shared_memory_region"
"""Parameter that would change the meaning of the response and must not be ignored."""


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


def refuse_unsupported(parameters: Container[str]) -> None:
    """Refuses parameters of a tensor in shared memory; others are ignored.

    Args:
        parameters: their names.

    Raises:
        UnsupportedError: the message names the parameter.
    """
    if REGION in parameters:
        raise UnsupportedError(
            f"parameter '{REGION}' is not taken here: inferences take shared memory if "
            "'extensions' in GET /v2 has system_shared_memory, and jobs never do; send the data"
        )
