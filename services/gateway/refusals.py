"""Refusals that both edges share: naming an input, and unsupported extensions."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from services.errors import InvalidRequestError, UnsupportedError

UNSUPPORTED_PARAMETERS = frozenset(
    {"shared_memory_region", "sequence_id", "sequence_start", "sequence_end"}
)
"""Parameters that would change the meaning of the response and must not be ignored."""
_SEQUENCE_ID = "a string, or a whole number from 0 to 2^64 - 1"


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


def refuse_unsupported(parameters: Mapping[str, Any], value_of: Callable[[Any], Any]) -> None:
    """Refuses parameters of extensions this server does not offer; others are ignored.

    Args:
        parameters: by name.
        value_of: function that returns the plain value of one of them.

    Raises:
        InvalidRequestError: a parameter of a sequence has a value of the wrong type.
        UnsupportedError: the message names the parameter.
    """
    for name in parameters:
        if name not in UNSUPPORTED_PARAMETERS:
            continue
        if name.startswith("sequence_") and _is_of_no_sequence(name, value_of(parameters[name])):
            continue
        raise UnsupportedError(
            f"parameter '{name}' belongs to an extension this server does not support; "
            "see 'extensions' in GET /v2"
        )


def _is_of_no_sequence(name: str, value: object) -> bool:
    """Returns True if a parameter has its value in a request without a sequence: 0, "" or false.

    Source: Triton's sequence extension.

    Raises:
        InvalidRequestError: the value has the wrong type, or is out of range.
    """
    if name == "sequence_id":
        fits = isinstance(value, str) or (type(value) is int and 0 <= value < 2**64)
    else:
        fits = isinstance(value, bool)
    if not fits:
        raise InvalidRequestError(
            f"parameter '{name}' must be {_SEQUENCE_ID if name == 'sequence_id' else 'a boolean'}, "
            f"and is {value!r:.60}; leave it out for a request without a sequence"
        )
    return not value
