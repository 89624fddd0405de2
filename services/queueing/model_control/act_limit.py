"""The limit of the loads and unloads that callers may have under way at once."""

from services.errors import TooManyInFlightError

MAX_ACTS = 64
"""Acts of one process at once. A further one is refused."""


def check_acts(count: int) -> None:
    """Checks that one more act may begin.

    Args:
        count: acts that are under way.

    Raises:
        TooManyInFlightError: it may not.
    """
    if count >= MAX_ACTS:
        raise TooManyInFlightError(
            f"{count} models are being loaded or unloaded, the limit; retry later"
        )
