"""Refusals that both edges share: naming an input, and unsupported extensions."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from services.errors import InvalidRequestError, UnsupportedError

UNSUPPORTED_PARAMETERS = frozenset(
    {"shared_memory_region", "classification", "sequence_id", "sequence_start", "sequence_end"}
)
"""Parameters that would change the meaning of the response and must not be ignored."""
_NO_SEQUENCE: dict[str, tuple[object, ...]] = {
    "sequence_id": (0, ""),
    "sequence_start": (False,),
    "sequence_end": (False,),
}
"""Values of a request without a sequence (Triton's sequence extension)."""


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
        UnsupportedError: the message names the parameter.
    """
    for name in parameters:
        if name not in UNSUPPORTED_PARAMETERS:
            continue
        value = value_of(parameters[name])
        if any(value == none and type(value) is type(none) for none in _NO_SEQUENCE.get(name, ())):
            continue
        raise UnsupportedError(
            f"parameter '{name}' belongs to an extension this server does not support; "
            "see 'extensions' in GET /v2"
        )
